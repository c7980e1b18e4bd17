"""The section of a run's page on its canaries: what attacks find of them, and what that proves."""

from math import isnan

import pandas as pd

from shoal.core.formats import DASH, capitalized, count, decimal
from shoal.metrics import auc_interval, median_interval
from shoal.metrics.metric_table import METRICS
from shoal.metrics.summary import Metrics
from shoal.reports.page import Section
from shoal.reports.table import Cell, Row, metric_table, row

_LEAST = {"canaries.found": 0, "canaries.tpr_at_fpr_0.1": 10, "canaries.tpr_at_fpr_0.01": 100}
"""Rates, and the left-out canaries below which there is no such rate; see `shoal.metrics.canary_rate`."""


def canary_section(metrics: Metrics, canaries: pd.DataFrame) -> Section:
    """The section on the canaries of a run.

    Args:
        metrics: of the whole run, by their keys in `summary.json`.
        canaries: one row per canary, as in canaries.csv.
    """
    members, others = (METRICS[f"canaries.{kind}"].text(metrics.get(f"canaries.{kind}"))
                       for kind in ("members", "non_members"))  # fmt: skip
    about = (
        f"Canaries are examples with a wrong label. For each a coin decided whether its client trains on it: {members} "
        f"were trained on and {others} left out, and nothing else tells the two apart. So the figures say what the "
        "final models remember of single, unusual examples, which are usually more exposed than the average record."
    )
    rows = [*(_rate(metrics, *each) for each in _LEAST.items()), _auc(metrics), _exposure(canaries), _epsilon(metrics)]
    table = metric_table("Canaries", ("value", "95 % interval"), rows)
    return Section("canaries", table.title, (about, *_broken(metrics)), table=table)


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


def _named(key: str, remark: str, *texts: str) -> Row:
    metric = METRICS[key]
    return row(Cell(capitalized(metric.name.removeprefix("canaries, ")), metric.meaning + remark), *texts)


def _rate(metrics: Metrics, key: str, least: int) -> Row:
    others, texts = metrics.get("canaries.non_members", 0), METRICS[key].text
    dash = f" A dash: at least {count(least)} left-out canaries are needed, {count(others)} are there."
    ends = [texts(metrics.get(f"{key}.{end}")) for end in ("low", "high")]
    interval = DASH if DASH in ends else " to ".join(ends)
    return _named(key, dash if others < least else "", texts(metrics.get(key)), interval)


def _auc(metrics: Metrics) -> Row:
    auc = metrics.get("canaries.auc")
    sizes = [metrics.get(f"canaries.{each}", 0) for each in ("members", "non_members")]
    between = DASH if auc is None else " to ".join(map(decimal, auc_interval(auc, *sizes)))
    return _named("canaries.auc", "", METRICS["canaries.auc"].text(auc), between)


def _exposure(canaries: pd.DataFrame) -> Row:
    """The median exposure of the canaries that were trained on."""
    meaning = (
        "Median, over the trained canaries, of the share of left-out ones that score at least as high, the canary "
        "itself counted. About 0.5: no trace; close to 0: it stands out. Each canary's is in canaries.csv."
    )
    known = canaries.loc[canaries["member"].astype(bool), "exposure"].dropna()
    median, (low, high) = DASH, (float("nan"), float("nan"))
    if len(known):
        median, (low, high) = decimal(float(known.median())), median_interval(known.to_numpy())
    return row(Cell("Exposure", meaning), median, DASH if isnan(low + high) else f"{decimal(low)} to {decimal(high)}")


def _epsilon(metrics: Metrics) -> Row:
    delta = METRICS["canaries.delta"].text(metrics.get("canaries.delta"))
    low = METRICS["canaries.epsilon_low"].text(metrics.get("canaries.epsilon_low"))
    return _named("canaries.epsilon_low", f" At delta = {delta}.", low, DASH if low == DASH else f"{low} or more")
