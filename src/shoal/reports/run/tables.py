"""A run's tables: one metric per row, with its meaning in plain words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pandas as pd

from shoal.reports.formats import DASH, count, decimal, format_duration, percent
from shoal.reports.run.limits import has_intervals
from shoal.simulation.summary import Metrics, Summary

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


BY_GROUP: tuple[tuple[str, Format, str, str], ...] = (
    ("accuracy", percent, "Accuracy", "Held-out images of the group that its clients' models get right."),
    ("train_accuracy", percent, "Train accuracy", "The same on the images that the clients trained on."),
    ("gap", decimal, "Gap attack", (
        "The simplest attack: what the model gets right it calls a training image. "
        "0.5 + (train accuracy - accuracy) / 2."
    )),
    ("mia", decimal, "MIA accuracy", (
        "How often the configured attack is right about who was a training image, members and non-members counting "
        "equally. The non-members are held-out images of the same group: this measures memorisation alone."
    )),
    ("mia_population", decimal, "MIA accuracy, population", (
        "The same attack, with non-members from all groups by their share: this also measures how easily the group "
        "itself is told from the others."
    )),
    ("mia_auc", decimal, "MIA AUC", (
        "Area under the attack's ROC curve: how often it ranks a member above a non-member of the same group."
    )),
    ("tpr_at_fpr_0.01", percent, "TPR at 1 % FPR", (
        "Share of the members that the attack names where it takes at most 1 % of the non-members for members; "
        "guessing: 1 %."
    )),
    ("tpr_at_fpr_0.001", percent, "TPR at 0.1 % FPR", "The same at 0.1 %; guessing: 0.1 %."),
    ("loss_threshold", decimal, "Loss-threshold attack", (
        "Balanced accuracy of an attack that calls images of small loss members; non-members of the same group."
    )),
    ("exceeded", count, "Limits exceeded", (
        "Clients whose model an attack is certain to expose more than they tolerate: the lower end of its 95 % "
        "interval is above their limit."
    )),
    ("violations", count, "Limits exceeded, point estimate", (
        "Clients whose model the configured attack exposes more than they tolerate, by the point estimate."
    )),
)  # fmt: skip


def by_group(summary: Summary, clients: pd.DataFrame, groups: Sequence[str], others: Sequence[str]) -> Table:
    """One column for each of ``groups``; of ``others``, which have no clients, there are only non-members."""
    metrics = [summary.by_group.get(group, {}) for group in groups]
    rows = [TableRow("Clients", "", tuple(str((clients["group"] == group).sum()) for group in groups))]
    for key, form, name, meaning in BY_GROUP:
        if key == "exceeded" and not any(key in each for each in metrics):
            continue
        rows.append(TableRow(name, meaning, tuple(cell(each, key, form) for each in metrics)))
        if key == "mia_population":
            for other in others:
                cells = tuple(cell(each, f"mia_against_{other}", decimal) for each in metrics)
                whose = f"The same attack, with non-members from {other}, to which no client belongs."
                rows.append(TableRow(f"MIA accuracy against {other}", whose, cells))
    return Table("Metrics by group", tuple(groups), tuple(rows))


BY_CLUSTER: tuple[tuple[str, Format, str, str], ...] = (
    ("examples", count, "Training images", "Of all its clients together."),
    ("accuracy", percent, "Accuracy", "Mean over its clients, each on held-out images of its own group."),
    ("train_accuracy", percent, "Train accuracy", "Mean over its clients, each on its own training images."),
    ("risk", decimal, "Last red-team risk", "The red team's last estimate, in training, of the attack's accuracy."),
    ("mia", decimal, "MIA accuracy", (
        "Measured on the final model: its clients' training images against as many held-out images with the same mix "
        "of groups. Compared with each client's limit."
    )),
    ("mia_auc", decimal, "MIA AUC", "Area under the ROC curve of that attack."),
    ("tpr_at_fpr_0.01", percent, "TPR at 1 % FPR", "As in the table by group."),
    ("tpr_at_fpr_0.001", percent, "TPR at 0.1 % FPR", "As in the table by group."),
)  # fmt: skip


def by_cluster(
    summary: Summary, clients: pd.DataFrame, groups: Sequence[str], clusters: int, *, estimated: bool
) -> Table:
    """One column per cluster, as chosen after the last round; the risk only where it was ever estimated."""

    def counts(those: pd.DataFrame) -> tuple[str, ...]:
        return tuple(str((those["cluster"] == k).sum()) for k in range(clusters))

    rows = [TableRow("Clients", "Those that chose its model after the last round.", counts(clients))]
    if len(groups) > 1:
        rows += [TableRow(f"… of {group}", "", counts(clients[clients["group"] == group])) for group in groups]
    metrics = [summary.by_cluster.get(k, {}) for k in range(clusters)]
    for key, form, name, meaning in BY_CLUSTER:
        known = metrics if key != "risk" or estimated else [{}] * clusters
        rows.append(TableRow(name, meaning, tuple(cell(each, key, form) for each in known)))
    if has_intervals(clients):
        over = counts(clients[clients["over"]])
        rows.append(TableRow("Limits exceeded", "Clients whose limit is exceeded for certain: see Clients.", over))
    over = counts(clients[clients["violated"] > 0])
    rows.append(TableRow(
        "Limits exceeded, point estimate", "Clients that tolerate less than the MIA accuracy above.", over
    ))  # fmt: skip
    return Table("Metrics by cluster", tuple(f"cluster {k}" for k in range(clusters)), tuple(rows))


OVERALL: tuple[tuple[str, Format, str, str], ...] = (
    ("fairness.demographic_parity", decimal, "Demographic parity difference", (
        "How differently often two groups are given a class, averaged over classes."
    )),
    ("fairness.equal_opportunity", decimal, "Equal opportunity difference", (
        "How differently often two groups' images of a class are recognised, averaged over classes."
    )),
    ("fairness.equalized_odds", decimal, "Equalized odds difference", (
        "The larger of that and of the same difference for images of other classes mistaken for the class."
    )),
    ("adjusted_rand_index", decimal, "Recovered grouping", (
        "Adjusted Rand index of clusters and true groups: 1 the same partition, about 0 chance."
    )),
    ("migrated", count, "Migrated clients", "Clients in a cluster where another group is in the majority."),
)  # fmt: skip

SECONDS: tuple[tuple[str, str, str], ...] = (
    ("seconds.total", "In all", "All rounds and the last measurement; the parts below leave out evaluation."),
    ("seconds.train", "Training", "Clients training, and merging what they send back."),
    ("seconds.choose", "Choosing", "Clients scoring the models to choose among them."),
    ("seconds.red_team", "Red team", "Estimating risk during training."),
    ("seconds.property_attack", "Property attack", "Simulating updates during training."),
)


def overall(metrics: Metrics) -> Table:
    """Fairness between the groups, how the clusters relate to them, and what differential privacy guarantees."""
    rows = tuple(TableRow(name, meaning, (cell(metrics, key, form),)) for key, form, name, meaning in OVERALL)
    if not {"epsilon", "delta"} & set(metrics):
        return Table("Fairness and grouping", ("value",), rows)
    meaning = (
        f"What differential privacy guarantees, at delta = {cell(metrics, 'delta', '{:g}'.format)}; smaller is more "
        "private. The largest of all clients; of the updates that they send, not of which model they choose."
    )
    if "epsilon" not in metrics:
        meaning += " There is none: without noise, nothing is guaranteed."
    epsilon = TableRow("Epsilon", meaning, (cell(metrics, "epsilon", decimal),))
    return Table("Fairness, grouping and differential privacy", ("value",), (*rows, epsilon))


def seconds(metrics: Metrics) -> Table:
    """Wall time; of a property attack only where there is one."""
    rows = tuple(
        TableRow(name, meaning, (cell(metrics, key, format_duration),))
        for key, name, meaning in SECONDS
        if key != "seconds.property_attack" or key in metrics
    )
    return Table("Time", ("wall time",), rows)
