"""The section of a run's page on its canaries: what was found of them, and what that proves."""

from dataclasses import dataclass
from math import isnan

import pandas as pd

from shoal.core.formats import DASH, count, decimal, percent
from shoal.metrics import auc_interval, median_interval
from shoal.metrics.summary import Metrics
from shoal.reports.run.run_tables import Format, Table, TableRow, cell

_RATES = (
    ("canaries.found", "TPR without false positives", "Trained canaries that score above every one that was left out."),
    ("canaries.tpr_at_fpr_0.1", "TPR at 10 % FPR", "The same above all but 10 % of those that were left out."),
    ("canaries.tpr_at_fpr_0.01", "TPR at 1 % FPR", "The same above all but 1 % of them."),
)
_LEAST = {"canaries.tpr_at_fpr_0.1": 10, "canaries.tpr_at_fpr_0.01": 100}
"""Left-out canaries below which there is no such rate; see `shoal.metrics.canary_rate`."""


@dataclass(frozen=True)
class CanarySection:
    """The section: its paragraphs, and its figures with their 95 % intervals."""

    paragraphs: tuple[str, ...]
    table: Table


def canary_section(metrics: Metrics, canaries: pd.DataFrame) -> CanarySection:
    """The section on the canaries of a run.

    Args:
        metrics: of the whole run, by their keys in `summary.json`.
        canaries: one row per canary, as in canaries.csv.
    """
    rows = (*(_rate(metrics, *each) for each in _RATES), _auc(metrics), _exposure(canaries), _epsilon(metrics))
    return CanarySection((_what(metrics), *_broken(metrics)), Table("Canaries", ("value", "95 % interval"), rows))


def _what(metrics: Metrics) -> str:
    members, others = (cell(metrics, f"canaries.{kind}", count) for kind in ("members", "non_members"))
    return (
        f"Canaries are examples with a wrong label. For each a coin decided whether its client trains on it: {members} "
        f"were trained on and {others} left out, and nothing else tells the two apart. So the figures say what the "
        "final models remember of single, unusual examples, which are usually more exposed than the average record."
    )


def _broken(metrics: Metrics) -> tuple[str, ...]:
    """What a bound above the stated epsilon means; nothing where there is none."""
    low, stated = metrics.get("canaries.epsilon_low", 0.0), metrics.get("epsilon")
    if stated is None or low <= stated:
        return ()
    return (
        f"The canaries prove an epsilon of at least {decimal(low)}, above the stated {decimal(stated)}: the promise is "
        "broken, unless chance made the bound too high (at most 5 in 100 are) or the reason is what epsilon does not "
        "cover, such as the choice of a model.",
    )


def _rate(metrics: Metrics, key: str, name: str, meaning: str) -> TableRow:
    least, others = _LEAST.get(key, 0), metrics.get("canaries.non_members", 0)
    if others < least:
        meaning += f" A dash: at least {count(least)} left-out canaries are needed, {count(others)} are there."
    return TableRow(name, meaning, (cell(metrics, key, percent), _between(metrics, key, percent)))


def _auc(metrics: Metrics) -> TableRow:
    meaning = "How often a trained canary scores above one that was left out; 0.5: they cannot be told apart."
    if "canaries.auc" not in metrics:
        return TableRow("AUC", meaning, (DASH, DASH))
    auc = metrics["canaries.auc"]
    low, high = auc_interval(auc, metrics["canaries.members"], metrics["canaries.non_members"])
    return TableRow("AUC", meaning, (decimal(auc), f"{decimal(low)} to {decimal(high)}"))


def _exposure(canaries: pd.DataFrame) -> TableRow:
    """The median exposure of the canaries that were trained on."""
    meaning = (
        "Median, over the trained canaries, of the share of left-out ones that score at least as high, the canary "
        "itself counted. About 0.5: no trace; close to 0: it stands out. Each canary's is in canaries.csv."
    )
    known = canaries.loc[canaries["member"].astype(bool), "exposure"].dropna()
    if known.empty:
        return TableRow("Exposure", meaning, (DASH, DASH))
    low, high = median_interval(known.to_numpy())
    between = DASH if isnan(low + high) else f"{decimal(low)} to {decimal(high)}"
    return TableRow("Exposure", meaning, (decimal(float(known.median())), between))


def _epsilon(metrics: Metrics) -> TableRow:
    meaning = (
        "With 95 % confidence training is not (epsilon, delta)-differentially private towards one example for any "
        f"smaller epsilon, at delta = {cell(metrics, 'canaries.delta', '{:g}'.format)}. 0 proves nothing."
    )
    low = cell(metrics, "canaries.epsilon_low", decimal)
    return TableRow("Epsilon, lower bound", meaning, (low, DASH if low == DASH else f"{low} or more"))


def _between(metrics: Metrics, key: str, form: Format) -> str:
    ends = f"{key}.low", f"{key}.high"
    return " to ".join(form(metrics[end]) for end in ends) if all(end in metrics for end in ends) else DASH
