"""Sentences of pages about exposure: headlines, missing views and the limit of differential privacy."""

from collections.abc import Iterable, Mapping, Sequence
from math import isnan, nan
from pathlib import Path
from shlex import quote
from typing import Any, NamedTuple

from shoal.audit.finding import BY, Finding, exposure_summary, most_exposed
from shoal.audit.record_table import CHOSEN_OF_VIEW
from shoal.core.formats import decimal
from shoal.data.preferences import VIEWS

ATTACKERS: Mapping[str, str] = {
    "outsider": "has the final models",
    "client": "receives the initial model and the models of all clusters in every round",
    "server": "sees every client's update",
}
"""The knowledge of each attacker, in addition to the previous attackers' knowledge."""

TO_MEASURE: Mapping[str, str] = {
    "outsider": "an audit attacks a run's final models",
    "client": "an audit retrains a run's first rounds and reads the models",
    "server": "an audit retrains a run's first rounds and reads the updates, or reads a trace's recorded updates",
}
"""How an audit measures each view."""

NO_LIMIT = 0.995
"""Limits above this accuracy do not restrict attacks noticeably."""


class Headline(NamedTuple):
    """A question, an answer, and a command to act on the answer."""

    question: str
    text: str
    command: str = ""


def exposure_headlines(
    found: Sequence[Finding], directory: Path | None = None, *, audited: bool = True
) -> list[Headline]:
    """Create the headlines that state which groups are exposed to which views, and suggest the next command.

    Args:
        directory: the run's directory for suggested commands, or ``None`` if the run has no configuration.
        audited: whether the findings come from an audit rather than from the run's configured attack.
    """
    worst = most_exposed(found)
    said = [Headline("Who is exposed, to whom?", exposure_summary(found) if worst else "Nothing was measured.")]
    if directory is None:
        return said
    run, config = (quote(str(path)) for path in (directory, directory / "config.toml"))
    if not audited:
        text, command = "Run the strongest attacks of every view:", f"shoal audit {run} --references 4"
    elif worst and worst[0].verdict == "exposed":
        text, command = "Search for a protection:", f"shoal protect {config} --view {worst[0].view} --limit 0.55"
    else:
        text, command = "Publish what was measured beside the models:", f"shoal card {run}"
    return [*said, Headline("What to do?", text, command)]


def not_measured(found: Iterable[Finding], omitted: Mapping[str, str] = {}) -> dict[str, str]:
    """Return the views without a finding, each with the reason or with the setting that measures the view."""
    reasons: dict[str, str] = {view: omitted.get(CHOSEN_OF_VIEW.get(view, ""), "") for view in VIEWS}
    asked = {one.view for one in found}
    return {
        view: "not measured" + (f", since the span attack {reason}." if reason else f"; {TO_MEASURE[view]}.")
        for view, reason in reasons.items()
        if view not in asked
    }


def limit_sentence(view: str, stated: Mapping[str, Any], found: Iterable[float] = ()) -> str:
    """Compare a view's largest attack accuracy with differential privacy's limit, without a full stop.

    Args:
        stated: the run's metrics "bound.<view>.accuracy" and "bound.<view>.auc". Without "bound.<view>.accuracy", the
            sentence is empty.
        found: the deciding attack's accuracy on each group, which may be NaN.

    >>> print(*limit_sentence("client", {"bound.client.accuracy": 0.73, "bound.client.auc": 0.81}, [0.6]).split("; "))
    The strongest attack by another client has accuracy 0.600 no attack on one record can exceed 0.730 (AUC 0.810)
    """
    accuracy, auc = (stated.get(f"bound.{view}.{name}", nan) for name in ("accuracy", "auc"))
    if isnan(accuracy):
        return ""
    limit = f"no attack on one record can exceed {decimal(accuracy)}" + f" (AUC {decimal(auc)})" * (not isnan(auc))
    if accuracy > NO_LIMIT:
        limit = "differential privacy limits no attack noticeably"
    most = max((value for value in found if not isnan(value)), default=nan)
    if isnan(most):
        return f"For {BY[view]} {limit}"
    return f"The strongest attack by {BY[view]} has accuracy {decimal(most)}; {limit}"


def exposure_tile(worst: Finding) -> tuple[str, str, str]:
    """Return the attack accuracy on the most exposed group, as the name, value and remark of a key metric."""
    interval = f"95 % interval {worst.accuracy.interval}; " if worst.accuracy.interval else ""
    return ("Attack accuracy", worst.accuracy.text, f"{worst.verdict}; {interval}chance: 0.500")
