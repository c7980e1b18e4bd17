"""A run's tables: one metric per row, with its meaning in plain words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import nan

import pandas as pd

from shoal.metrics import least_non_members
from shoal.metrics.membership import FALSE_POSITIVES
from shoal.metrics.summary import Metrics, Summary
from shoal.reports.formats import (
    ACCURACY,
    DASH,
    capitalized,
    count,
    decimal,
    format_duration,
    name_examples,
    number,
    percent,
)
from shoal.reports.run.limits import has_intervals
from shoal.reports.strongest import accuracies_by_attack, reference_federations, strongest_attacks

Format = Callable[[float], str]


Rows = tuple[tuple[str, Format, str, str], ...]
"""The rows of a table: key of the summary, format, name and meaning."""


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


def measured_by(metric: str, rows: Rows) -> Rows:
    """The rows as those of a run with this metric: of another one than accuracy no gap, and its own name."""
    if metric == ACCURACY:
        return rows
    own = {
        "accuracy": (capitalized(metric), "Mean over held-out examples of a client's own group; higher is better."),
        "train_accuracy": (f"Train: {metric}", "On the examples that the clients trained on."),
    }
    return tuple((row[0], number, *own[row[0]]) if row[0] in own else row for row in rows if row[0] != "gap")


def cell(metrics: Metrics, key: str, form: Format) -> str:
    """A metric as text; a dash where it is undefined."""
    return form(metrics[key]) if key in metrics else DASH


BY_GROUP: Rows = (
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
    ("mia_null_high", decimal, "MIA accuracy, 95 % of tests at chance", (
        "What 95 % of tests of this size give at most where nothing is leaked."
    )),
    ("mia_population", decimal, "MIA accuracy, population", (
        "The same attack, with non-members from all groups by their share: this also measures how easily the group "
        "itself is told from the others."
    )),
    ("mia_auc", decimal, "MIA AUC", (
        "Area under the attack's ROC curve: how often it ranks a member above a non-member of the same group."
    )),
    ("tpr_at_fpr_0.01", percent, "TPR at 1 % FPR", (
        "Share of the members that the attack names where it takes at most 1 % of the non-members for members."
    )),
    ("tpr_at_fpr_0.001", percent, "TPR at 0.1 % FPR", "The same at 0.1 %."),
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


BY_REFERENCES = {
    "mia": (
        "How often the attack that decides is right about who was a training image, members and non-members counting "
        "equally. It was chosen beforehand, without the members, or is certain to find more. The non-members are "
        "held-out images of the same group: this measures memorisation alone."
    ),
    "mia_population": (
        "The configured attack, with non-members from all groups by their share: this also measures how easily the "
        "group itself is told from the others."
    ),
    "mia_auc": (
        "Area under that attack's ROC curve: how often it ranks a member above a non-member of the same group."
    ),
    "violations": "Clients whose model that attack exposes more than they tolerate, by the point estimate.",
}
"""What metrics of `BY_GROUP` mean in a run with reference federations."""


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
) -> Table:
    """One column for each of ``groups``; of ``others``, which have no clients, there are only non-members.

    ``non_members`` are those of each group, ``kind`` is what examples are, and ``metric`` is the run's.
    """
    metrics = [summary.by_group.get(group, {}) for group in groups]
    meanings = BY_REFERENCES if reference_federations(summary) else {}
    rows = [TableRow("Clients", "", tuple(str((clients["group"] == group).sum()) for group in groups))]
    for key, form, name, meaning in measured_by(metric, BY_GROUP):
        if key == "exceeded" and not any(key in each for each in metrics):
            continue
        meant = name_examples(meanings.get(key, meaning), kind)
        rows.append(TableRow(name, meant, tuple(cell(each, key, form) for each in metrics)))
        if key in RATES:
            rows[-1] = _at_fpr(rows[-1], key, [non_members.get(group, nan) for group in groups])
        if key == "mia_population":
            for other in others:
                cells = tuple(cell(each, f"mia_against_{other}", decimal) for each in metrics)
                whose = f"The same attack, with non-members from {other}, to which no client belongs."
                rows.append(TableRow(f"MIA accuracy against {other}", whose, cells))
    return Table("Metrics by group", tuple(groups), tuple(rows))


def by_attack(summary: Summary, groups: Sequence[str]) -> Table | None:
    """One column for each of ``groups``, a row an attack; None without reference federations."""
    found = {group: accuracies_by_attack(summary.by_group.get(group, {})) for group in groups}
    titles = dict.fromkeys(title for each in found.values() for title in each)
    order = sorted(titles, key=lambda title: -max(each.get(title, 0.0) for each in found.values()))
    if not order:
        return None
    decides = strongest_attacks(summary)
    best = tuple(decides.get(group, DASH) for group in groups)
    meaning = "Chosen beforehand, without the members, or certain to find more than the one that was."
    rows = [TableRow("Attack that decides", meaning, best)]
    rows += [TableRow(title, "", tuple(cell(each, title, decimal) for each in found.values())) for title in order]
    return Table("Balanced accuracy by attack", tuple(groups), tuple(rows))


BY_CLUSTER: Rows = (
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
    summary: Summary,
    clients: pd.DataFrame,
    groups: Sequence[str],
    clusters: int,
    non_members: Metrics,
    *,
    estimated: bool,
    kind: str = "images",
    metric: str = ACCURACY,
) -> Table:
    """One column per cluster, as chosen after the last round; the risk only where it was ever estimated.

    ``non_members`` are those of each group, ``kind`` is what examples are, and ``metric`` is the run's.
    """

    def counts(those: pd.DataFrame) -> tuple[str, ...]:
        return tuple(str((those["cluster"] == k).sum()) for k in range(clusters))

    rows = [TableRow("Clients", "Those that chose its model after the last round.", counts(clients))]
    if len(groups) > 1:
        rows += [TableRow(f"… of {group}", "", counts(clients[clients["group"] == group])) for group in groups]
    metrics = [summary.by_cluster.get(k, {}) for k in range(clusters)]
    for key, form, name, meaning in measured_by(metric, BY_CLUSTER):
        known = metrics if key != "risk" or estimated else [{}] * clusters
        cells = tuple(cell(each, key, form) for each in known)
        rows.append(TableRow(name_examples(name, kind), name_examples(meaning, kind), cells))
        if key in RATES:
            own = (clients[clients["cluster"] == k] for k in range(clusters))
            rows[-1] = _at_fpr(rows[-1], key, [_effective_non_members(each, non_members) for each in own])
    if has_intervals(clients):
        over = counts(clients[clients["over"]])
        rows.append(TableRow("Limits exceeded", "Clients whose limit is exceeded for certain: see Clients.", over))
    over = counts(clients[clients["violated"] > 0])
    rows.append(TableRow(
        "Limits exceeded, point estimate", "Clients that tolerate less than the MIA accuracy above.", over
    ))  # fmt: skip
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


OVERALL: Rows = (
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
    ("seconds.total", "In all", "All rounds and the last measurement, in the parts below."),
    ("seconds.train", "Training", "Clients training, and merging what they send back."),
    ("seconds.choose", "Choosing", "Clients scoring the models to choose among them."),
    ("seconds.red_team", "Red team", "Estimating risk during training."),
    ("seconds.evaluation", "Evaluation", "Each round's models on the test set."),
    ("seconds.files", "Files", "Checkpoints and recorded updates between rounds, and progress."),
    ("seconds.measurement", "Measurement", "Attacking the final models, and all figures of this page."),
    ("seconds.property_attack", "Property attack", "Simulating updates during training."),
    ("seconds.references", "Reference federations", "Training them, after the last round."),
)

# The others are missing in runs of earlier versions, and where nothing of the kind is done.
_ALWAYS = ("seconds.total", "seconds.train", "seconds.choose", "seconds.red_team")


def overall(metrics: Metrics, kind: str = "images", *, fair: bool = True) -> Table:
    """Fairness between the groups, how the clusters relate to them, and what differential privacy guarantees.

    Without ``fair`` there is no fairness, which is of classes.
    """
    rows = tuple(
        TableRow(name, name_examples(meaning, kind), (cell(metrics, key, form),))
        for key, form, name, meaning in OVERALL
        if fair or not key.startswith("fairness.")
    )
    about = "Fairness, grouping" if fair else "Grouping"
    if not {"epsilon", "delta"} & set(metrics):
        return Table(about.replace(",", " and"), ("value",), rows)
    meaning = (
        f"What differential privacy guarantees, at delta = {cell(metrics, 'delta', '{:g}'.format)}; smaller is more "
        "private. The largest of all clients; of the updates that they send and the models that they use, not of which "
        "model they choose."
    )
    if "epsilon" not in metrics:
        meaning += " There is none: without noise, nothing is guaranteed."
    epsilon = TableRow("Epsilon", meaning, (cell(metrics, "epsilon", decimal),))
    return Table(f"{about} and differential privacy", ("value",), (*rows, epsilon))


def seconds(metrics: Metrics) -> Table:
    """Wall time; of a property attack, and of reference federations, only where there are some."""
    rows = tuple(
        TableRow(name, meaning, (cell(metrics, key, format_duration),))
        for key, name, meaning in SECONDS
        if key in _ALWAYS or key in metrics
    )
    return Table("Time", ("wall time",), rows)
