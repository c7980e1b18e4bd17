"""What attacks found beside what a run promises: the empirical and the stated epsilon, and the limit on any attack."""

from collections.abc import Iterable, Mapping
from math import inf, isinf, isnan, log, nan
from typing import Any

from shoal.audit.audit import Audit
from shoal.core.formats import DASH, decimal, percent
from shoal.reports.attack_titles import BY

NO_LIMIT = 0.995
"""The accuracy above which a limit says nothing."""


def epsilon_text(value: float) -> str:
    """An epsilon; a dash where there is none.

    >>> epsilon_text(1.234), epsilon_text(float("inf"))
    ('1.23', '∞')
    """
    return DASH if isnan(value) else "\N{INFINITY}" if isinf(value) else f"{value:.2f}"


def stated_epsilon(stated: Mapping[str, float]) -> str:
    """The stated epsilon with its delta, or "none stated"."""
    return f"stated: {epsilon_text(stated['epsilon'])}{_at(stated)}" if "epsilon" in stated else "none stated"


def exceeds_stated(audit: Audit, stated: Mapping[str, float]) -> bool:
    """Whether the empirical epsilon contradicts the stated one.

    A guarantee at a delta holds at every larger one; where the stated delta is the larger, nothing is contradicted.
    Without a stated delta, it is taken for that of the audit.
    """
    return _comparable(audit, stated) and audit.empirical_epsilon > stated.get("epsilon", inf)


def violation_warning(audit: Audit, stated: Mapping[str, float]) -> str:
    """What a contradiction between the two means; empty where there is none."""
    if not exceeds_stated(audit, stated):
        return ""
    return (
        f"The empirical epsilon, {epsilon_text(audit.empirical_epsilon)}, is above the stated one, "
        f"{epsilon_text(stated['epsilon'])}: the stated guarantee does not hold against this attack, unless chance "
        "made the bound too high (at most 5 in 100 are) or the attack uses what the guarantee does not cover, such "
        "as the choice of a model."
    )


def epsilon_sentences(audit: Audit, stated: Mapping[str, float]) -> list[str]:
    """What each of the two means."""
    # The bound is judged on half of the records, see `empirical_epsilon`.
    half, is_at = min(audit.members, audit.non_members) // 2, f"at delta {audit.delta:g}"
    most = f"With {half:,} records of a kind to judge it on, it could not be above about {log(max(1, half / 3.7)):.1f}."
    if isnan(audit.empirical_epsilon):
        empirical = "The empirical epsilon was not measured."
    elif audit.empirical_epsilon == 0:
        empirical = (
            f"The empirical epsilon is 0.00 {is_at}: nothing was proven, neither a leak nor that there is none; a "
            f"bound above 0 takes a stronger attack or more records. {most}"
        )
    else:
        empirical = (
            f"The empirical epsilon is {epsilon_text(audit.empirical_epsilon)} {is_at}: a lower bound at 95 % "
            "confidence, since under differential privacy of one record with a smaller epsilon no attack could do what "
            f"the strongest one did here, as if records were independent. {most}"
        )
    if "epsilon" not in stated:
        return [empirical, "No epsilon is stated, so nothing limits what a stronger attack finds."]
    upper = (
        f"The stated epsilon is {epsilon_text(stated['epsilon'])}{_at(stated)}: an upper bound, by the noise that was "
        "added in training, on what any attack can find of one example of the client with the largest."
    )
    why = "The two cannot be compared: the stated delta is the larger, and a guarantee says nothing of smaller ones."
    return [empirical, upper, *([] if _comparable(audit, stated) else [why])]


def limit_sentence(view: str, stated: Mapping[str, Any], found: Iterable[float] = ()) -> str:
    """The largest balanced accuracy that was found in a view, and the one that no attack exceeds, without a full stop.

    Args:
        view: of the attacker.
        stated: "bound.<view>.accuracy", without which the sentence is empty, and "bound.<view>.auc".
        found: by the attack that decides, of each group; NaN or none: nothing was measured.

    >>> print(*limit_sentence("client", {"bound.client.accuracy": 0.73, "bound.client.auc": 0.81}, [0.6]).split("; "))
    The strongest attack by a client has balanced accuracy 60.0 % no attack on one record can exceed 73.0 % (AUC 0.810)
    """
    accuracy, auc = (stated.get(f"bound.{view}.{name}", nan) for name in ("accuracy", "auc"))
    if isnan(accuracy):
        return ""
    limit = f"no attack on one record can exceed {percent(accuracy)}" + f" (AUC {decimal(auc)})" * (not isnan(auc))
    if accuracy > NO_LIMIT:
        limit = "differential privacy limits no attack noticeably"
    most = max((value for value in found if not isnan(value)), default=nan)
    if isnan(most):
        return f"For {BY[view]} {limit}"
    return f"The strongest attack by {BY[view]} has balanced accuracy {percent(most)}; {limit}"


def _comparable(audit: Audit, stated: Mapping[str, float]) -> bool:
    return stated.get("delta", audit.delta) <= audit.delta


def _at(stated: Mapping[str, float]) -> str:
    return f" at delta {stated['delta']:g}" if "delta" in stated else ""
