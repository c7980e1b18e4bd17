"""What of a run's values makes sense together."""

from shoal.algorithms import IFCA, IFCAMIR
from shoal.attacks import RedTeam
from shoal.core.errors import require
from shoal.data import Federation
from shoal.defenses import DPSGD, accounting
from shoal.engine import Algorithm, LocalSGD


def check_together(algorithm: Algorithm, local: LocalSGD, red_team: RedTeam) -> None:
    """Raise `InputError` where an algorithm cannot do with this local training or red team."""
    ifca = algorithm.ifca if isinstance(algorithm, IFCAMIR) else algorithm
    require(
        not isinstance(algorithm, IFCAMIR) or red_team.every > 0,
        "'algorithm.name' = \"ifca-mir\" chooses by risk, so 'red_team.every' must be at least 1; got 0",
    )
    require(
        not isinstance(ifca, IFCA) or ifca.averaging == "model" or local.steps == 1,
        "'algorithm.averaging' = \"gradient\" takes one gradient a round, so 'local.steps' must be 1",
    )


def check_spending(federation: Federation, rounds: int, local: LocalSGD) -> None:
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
