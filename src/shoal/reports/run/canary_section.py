"""The section of a run's page on its canaries: what attacks find of them, and what that proves."""

from math import isnan

import pandas as pd

from shoal.core.formats import DASH, count, decimal
from shoal.metrics import auc_interval, median_interval
from shoal.metrics.metric_table import METRICS
from shoal.metrics.summary import Metrics
from shoal.reports.page import Section
from shoal.reports.table import Cell, Row, metric_row, metric_table, row

_LEAST = {"canaries.found": 0, "canaries.tpr_at_fpr_0.1": 10, "canaries.tpr_at_fpr_0.01": 100}
"""Rates, and the left-out canaries below which there is no such rate; see `shoal.metrics.canary_rate`."""


def canary_section(metrics: Metrics, canaries: pd.DataFrame) -> Section:
    """The section on the canaries of a run.

    Args:
        metrics: of the whole run, by their keys in `summary.json`.
        canaries: one row per canary, as in canaries.csv.
    """
    members, non_members = (metrics.get(f"canaries.{kind}", 0) for kind in ("members", "non_members"))
    auc, low = metrics.get("canaries.auc"), _text(metrics, "canaries.epsilon_low")
    between = DASH if auc is None else _interval(*auc_interval(auc, members, non_members))
    delta = f" At delta = {_text(metrics, 'canaries.delta')}."
    rows = (
        *(_rate(metrics, key, least, non_members) for key, least in _LEAST.items()),
        _row(metrics, "canaries.auc", between),
        _exposure(canaries),
        _row(metrics, "canaries.epsilon_low", DASH if low == DASH else f"{low} or more", delta),
    )
    about = (
        "Canaries are examples with a wrong label. For each a coin decided whether its client trains on it: "
        f"{_text(metrics, 'canaries.members')} were trained on and {_text(metrics, 'canaries.non_members')} left out, "
        "and nothing else tells the two apart. So the figures say what the final models remember of single, unusual "
        "examples, which are usually more exposed than the average record."
    )
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


def _text(metrics: Metrics, key: str) -> str:
    return METRICS[key.removesuffix(".low").removesuffix(".high")].text(metrics.get(key))


def _row(metrics: Metrics, key: str, interval: str, remark: str = "") -> Row:
    return metric_row(METRICS[key], _text(metrics, key), interval, remark=remark, family="canaries, ")


def _interval(low: float, high: float) -> str:
    return DASH if isnan(low + high) else f"{decimal(low)} to {decimal(high)}"


def _rate(metrics: Metrics, key: str, least: int, non_members: float) -> Row:
    dash = f" A dash: at least {count(least)} left-out canaries are needed, {count(non_members)} are there."
    ends = [_text(metrics, f"{key}.{end}") for end in ("low", "high")]
    return _row(metrics, key, DASH if DASH in ends else " to ".join(ends), dash * (non_members < least))


def _exposure(canaries: pd.DataFrame) -> Row:
    """The median exposure of the canaries that were trained on."""
    meaning = (
        "Median, over the trained canaries, of the share of left-out ones that score at least as high, the canary "
        "itself counted. About 0.5: no trace; close to 0: it stands out. Each canary's is in canaries.csv."
    )
    exposures = canaries.loc[canaries["member"].astype(bool), "exposure"].dropna()
    texts = DASH, DASH
    if len(exposures):
        texts = decimal(float(exposures.median())), _interval(*median_interval(exposures.to_numpy()))
    return row(Cell("Exposure", meaning), *texts)
