"""A run's tables: one metric per row, with its meaning in plain words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import nan

import pandas as pd

from shoal.core.formats import (
    ACCURACY,
    DASH,
    capitalized,
    count,
    decimal,
    name_examples,
)
from shoal.metrics import least_non_members
from shoal.metrics.membership import FALSE_POSITIVES
from shoal.metrics.metric_table import METRICS, Metric, is_declared, metric_of
from shoal.metrics.summary import Metrics, Summary
from shoal.reports.run.limits import has_intervals
from shoal.reports.strongest import accuracies_by_attack, strongest_attacks

Format = Callable[[float], str]


@dataclass(frozen=True)
class TableRow:
    """A metric: its name, its meaning, and its values as text, one per column."""

    name: str
    meaning: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Rows under column heads."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[TableRow, ...]


def cell(metrics: Metrics, key: str, form: Format) -> str:
    """A metric as text; a dash where it is undefined."""
    return form(metrics[key]) if key in metrics else DASH


BY_GROUP = (
    "accuracy", "train_accuracy", "gap", "mia", "mia_null_high", "mia_population", "mia_auc", "tpr_at_fpr_0.01",
    "tpr_at_fpr_0.001", "loss_threshold", "exceeded", "violations",
)  # fmt: skip
"""The metrics of groups on the page, by their keys in the table of metrics; those of the user's own follow."""


RATES = {"tpr_at_fpr_0.01": 0.01, "tpr_at_fpr_0.001": 0.001}
"""False positive rates that a true positive rate is given at."""


def _at_fpr(row: TableRow, key: str, non_members: Sequence[float]) -> TableRow:
    """A true positive rate with what guessing gives; a dash, and why, where it would hang on one or two non-members.

    ``non_members`` are those of each column, NaN where their number is unknown.
    """
    rate = RATES[key]
    needed = least_non_members(rate)
    too_few = [number < needed * (1 - 1e-9) for number in non_members]
    cells = tuple(DASH if few else text for text, few in zip(row.cells, too_few, strict=True))
    meaning = f"{row.meaning} Guessing: {100 * rate:g} %." if not all(too_few) else row.meaning
    if any(too_few):
        least = min(number for number, few in zip(non_members, too_few, strict=True) if few)
        meaning += (
            f" A dash: too few non-members (at least {count(needed)} are needed, {count(least)} are there), since "
            f"{100 * rate:g} % of them are fewer than {FALSE_POSITIVES}."
        )
    return TableRow(row.name, meaning, cells)


def by_group(
    summary: Summary,
    clients: pd.DataFrame,
    groups: Sequence[str],
    others: Sequence[str],
    non_members: Metrics,
    kind: str = "images",
    metric: str = ACCURACY,
    *,
    own: Mapping[str, Metric] | None = None,
) -> Table:
    """One column for each of ``groups``; of ``others``, which have no clients, there are only non-members.

    ``non_members`` are those of each group, ``kind`` is what examples are, and ``metric`` is the run's.
    """
    metrics = [summary.by_group.get(group, {}) for group in groups]
    rows = [TableRow("Clients", "", tuple(str((clients["group"] == group).sum()) for group in groups))]
    for each in _shown(BY_GROUP, metrics, measured=metric, own=own):
        key = each.key
        if key == "exceeded" and not any(key in one for one in metrics):
            continue
        rows.append(_row(each, each.meaning, metrics, kind))
        if key in RATES:
            rows[-1] = _at_fpr(rows[-1], key, [non_members.get(group, nan) for group in groups])
        if key == "mia_population":
            for other in others:
                against = metric_of(f"mia_against_{other}")
                whose = f"The same attack, with non-members from {other}, to which no client belongs."
                rows.append(TableRow(capitalized(against.name), whose, _texts(against, metrics)))
    return Table("Metrics by group", tuple(groups), tuple(rows))


def by_attack(summary: Summary, groups: Sequence[str]) -> Table | None:
    """One column for each of ``groups``, a row an attack; None without reference federations."""
    found = {group: accuracies_by_attack(summary.by_group.get(group, {})) for group in groups}
    titles = dict.fromkeys(title for each in found.values() for title in each)
    order = sorted(titles, key=lambda title: -max(each.get(title, 0.0) for each in found.values()))
    if not order:
        return None
    decides = strongest_attacks(summary)
    best = tuple(capitalized(decides.get(group, DASH)) for group in groups)
    meaning = "Chosen beforehand, without the members, or certain to find more than the one that was."
    rows = [TableRow("Attack that decides", meaning, best)]
    rows += [
        TableRow(capitalized(title), "", tuple(cell(each, title, decimal) for each in found.values()))
        for title in order
    ]
    return Table("Balanced accuracy by attack", tuple(groups), tuple(rows))


BY_CLUSTER = (
    "examples", "accuracy", "train_accuracy", "risk", "mia", "mia_auc", "tpr_at_fpr_0.01", "tpr_at_fpr_0.001",
)  # fmt: skip
"""The metrics of models on the page."""


def _shown(
    keys: Sequence[str],
    metrics: Sequence[Metrics],
    *,
    measured: str = ACCURACY,
    own: Mapping[str, Metric] | None = None,
) -> list[Metric]:
    """The metrics of the rows: those of ``keys``, and all that the table of metrics does not have."""
    further = [key for each in metrics for key in each if not is_declared(key)]
    shown = [key for key in dict.fromkeys([*keys, *further]) if measured == ACCURACY or key != "gap"]
    return [metric_of(key, measured=measured, own=own) for key in shown]


def _texts(metric: Metric, metrics: Sequence[Metrics]) -> tuple[str, ...]:
    return tuple(metric.text(each.get(metric.key)) for each in metrics)


def _row(metric: Metric, meaning: str, metrics: Sequence[Metrics], kind: str) -> TableRow:
    name = capitalized(metric.name)
    if not is_declared(metric.key):
        # The user's own words.
        return TableRow(name, meaning, _texts(metric, metrics))
    return TableRow(name_examples(name, kind), name_examples(meaning, kind), _texts(metric, metrics))


def by_cluster(
    summary: Summary,
    clients: pd.DataFrame,
    groups: Sequence[str],
    clusters: int,
    non_members: Metrics,
    *,
    estimated: bool,
    kind: str = "images",
    metric: str = ACCURACY,
    own: Mapping[str, Metric] | None = None,
) -> Table:
    """One column per cluster, as chosen after the last round; the risk only where it was ever estimated.

    ``non_members`` are those of each group, ``kind`` is what examples are, and ``metric`` is the run's.
    """

    def counts(those: pd.DataFrame) -> tuple[str, ...]:
        return tuple(str((those["cluster"] == k).sum()) for k in range(clusters))

    rows = [TableRow("Clients", METRICS["clients"].of_model, counts(clients))]
    if len(groups) > 1:
        rows += [TableRow(f"… of {group}", "", counts(clients[clients["group"] == group])) for group in groups]
    metrics = [summary.by_cluster.get(k, {}) for k in range(clusters)]
    for each in _shown(BY_CLUSTER, metrics, measured=metric, own=own):
        key = each.key
        known = metrics if key != "risk" or estimated else [{}] * clusters
        rows.append(_row(each, each.of_model or each.meaning, known, kind))
        if key in RATES:
            inside = (clients[clients["cluster"] == k] for k in range(clusters))
            rows[-1] = _at_fpr(rows[-1], key, [_effective_non_members(each, non_members) for each in inside])
    exceeded, violations = METRICS["exceeded"], METRICS["violations"]
    if has_intervals(clients):
        rows.append(TableRow(capitalized(exceeded.name), exceeded.of_model, counts(clients[clients["over"]])))
    over = counts(clients[clients["violated"] > 0])
    rows.append(TableRow(capitalized(violations.name), violations.of_model, over))
    return Table("Metrics by cluster", tuple(f"cluster {k}" for k in range(clusters)), tuple(rows))


def _effective_non_members(clients: pd.DataFrame, non_members: Metrics) -> float:
    """The number of equally weighted non-members that carry as much as a cluster's (Kish 1965).

    They are weighted to the mix of groups among its ``clients``' training examples; NaN without clients.

    >>> clients = pd.DataFrame({"group": ["a", "b"], "examples": [30, 10]})
    >>> round(_effective_non_members(clients, {"a": 100, "b": 100}), 6)
    160.0
    """
    mix = clients.groupby("group")["examples"].sum()
    mix = mix[[group for group in mix.index if non_members.get(str(group), 0) > 0]]
    spread = sum(share**2 / non_members[str(group)] for group, share in (mix / mix.sum()).items())
    return 1 / spread if spread else nan


OVERALL = (
    "fairness.demographic_parity", "fairness.equal_opportunity", "fairness.equalized_odds", "adjusted_rand_index",
    "migrated",
)  # fmt: skip
SECONDS = [key for key, each in METRICS.items() if each.format == "seconds"]

# The others are missing in runs of earlier versions, and where nothing of the kind is done.
_ALWAYS = ("seconds.total", "seconds.train", "seconds.choose", "seconds.red_team")


def overall(
    metrics: Metrics, kind: str = "images", *, fair: bool = True, own: Mapping[str, Metric] | None = None
) -> Table:
    """Fairness between the groups, how the clusters relate to them, and what differential privacy guarantees.

    Without ``fair`` there is no fairness, which is of classes.
    """
    keys = [key for key in OVERALL if fair or not key.startswith("fairness.")]
    rows = tuple(_row(each, each.meaning, [metrics], kind) for each in _shown(keys, [metrics], own=own))
    about = "Fairness, grouping" if fair else "Grouping"
    if not {"epsilon", "delta"} & set(metrics):
        return Table(about.replace(",", " and"), ("value",), rows)
    meaning = f"{METRICS['epsilon'].meaning} At delta = {cell(metrics, 'delta', '{:g}'.format)}."
    if "epsilon" not in metrics:
        meaning += " There is none: without noise, nothing is guaranteed."
    epsilon = TableRow("Epsilon", meaning, _texts(METRICS["epsilon"], [metrics]))
    return Table(f"{about} and differential privacy", ("value",), (*rows, epsilon))


def seconds(metrics: Metrics) -> Table:
    """Wall time; of a property attack, and of reference federations, only where there are some."""
    shown = [METRICS[key] for key in SECONDS if key in _ALWAYS or key in metrics]
    rows = tuple(_row(each, each.meaning, [metrics], "images") for each in shown)
    return Table("Time", ("wall time",), rows)
