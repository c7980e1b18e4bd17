"""Checks of values that must fit together."""

from shoal.attacks import RedTeam
from shoal.core.errors import require
from shoal.data import Federation
from shoal.defenses import DPSGD, accounting
from shoal.engine import Algorithm, LocalSGD


def check_algorithm(algorithm: Algorithm, local: LocalSGD, red_team: RedTeam) -> None:
    """Raise `InputError` where ``algorithm`` is none, or cannot do with this local training or red team."""
    methods = [name for name in ("check", "init", "plan", "server_update", "deployed") if not hasattr(algorithm, name)]
    kind = type(algorithm).__name__
    require(not methods, f"{kind} is no algorithm: it has no method {', '.join(methods)} (see shoal.engine.Algorithm)")
    algorithm.check(local, red_team.every)


def check_accountable(federation: Federation, rounds: int, local: LocalSGD) -> None:
    """Raise `InputError` where the accountant could not say, after all rounds, what the clients spent."""
    rule = private_rule(local)
    if rule is None:
        return
    accounting.check_computable(federation.clients.sizes, rounds, local, rule)
    schedule = federation.property_schedule
    if schedule is None:
        return
    # A victim that takes turns has fewer examples in each of its two kinds of rounds, and a step takes more of them.
    for number, often in ((1, rounds - rounds // schedule.period), (schedule.period, rounds // schedule.period)):
        sizes = federation.clients_in_round(number).sizes[federation.ids == schedule.victim]
        accounting.check_computable(sizes, often, local, rule)


def private_rule(local: LocalSGD) -> DPSGD | None:
    """How local steps are private by DP-SGD, if they are."""
    rule = local.gradient_privacy
    return rule if local.private and isinstance(rule, DPSGD) else None
