"""Whether the accountant of DP-SGD can say what a run's clients spend."""

from shoal.data import Federation
from shoal.defenses import DPSGD, accounting
from shoal.engine import LocalSGD


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
    for number, often in ((1, rounds - rounds // schedule.every), (schedule.every, rounds // schedule.every)):
        sizes = federation.clients_in_round(number).sizes[federation.ids == schedule.victim]
        accounting.check_computable(sizes, often, local, rule)


def private_rule(local: LocalSGD) -> DPSGD | None:
    """How local steps are private by DP-SGD, if they are."""
    rule = local.gradient_privacy
    return rule if local.private and isinstance(rule, DPSGD) else None
