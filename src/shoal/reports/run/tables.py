"""A run's tables: each line a figure, with what it means in plain words."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import pandas as pd

from shoal.reports.frames import column, of_group, rows

DASH = "\N{EN DASH}"
"""Stands for a figure that is undefined, such as the exposure of a model without clients."""

Figures = Mapping[str, float | int | str]
Format = Callable[[float], str]


@dataclass(frozen=True)
class Line:
    """A figure by column: how it is called, what it means, and its values as they are shown."""

    name: str
    meaning: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Lines under column heads."""

    title: str
    heads: tuple[str, ...]
    lines: tuple[Line, ...]


def percent(value: float) -> str:
    """A share.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * value:.1f} %"


def decimal(value: float) -> str:
    """A figure that is compared with 0.5.

    >>> decimal(0.1234)
    '0.123'
    """
    return f"{value:.3f}"


def count(value: float) -> str:
    """A number of things.

    >>> count(1234.0)
    '1,234'
    """
    return f"{int(value):,}"


def duration(value: float) -> str:
    """A wall time.

    >>> duration(18.848), duration(754)
    ('18.8 s', '12 min 34 s')
    """
    return f"{value:.1f} s" if value < 60 else f"{int(value) // 60} min {int(value) % 60} s"


def shown(figures: Figures, key: str, form: Format) -> str:
    """A figure as it is shown; a dash where it is undefined."""
    value = figures.get(key)
    if not isinstance(value, int | float) or isnan(value):
        return DASH
    return form(value)


BY_GROUP: tuple[tuple[str, Format, str, str], ...] = (
    ("accuracy", percent, "Accuracy", "Held-out images of the group that its clients' models get right."),
    ("train_accuracy", percent, "Train accuracy", "The same on the images that the clients trained on."),
    ("gap", decimal, "Gap attack", (
        "The simplest attack: what the model gets right it calls a training image. "
        "0.5 + (train accuracy - accuracy) / 2."
    )),
    ("mia", decimal, "MIA accuracy", (
        "How often the configured attack is right about who was a training image, members and non-members counting "
        "equally. The non-members are held-out images of the same group: this measures memory alone."
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
    ("violations", count, "Limits exceeded", "Clients whose model is attacked with more success than they tolerate."),
)  # fmt: skip


def by_group(figures: Figures, clients: pd.DataFrame, groups: Sequence[str], others: Sequence[str]) -> Table:
    """The table by group, a column each of ``groups``; of ``others``, which have no clients, only non-members."""
    lines = [Line("Clients", "", tuple(str(of_group(clients, group).sum()) for group in groups))]
    for key, form, name, meaning in BY_GROUP:
        lines.append(Line(name, meaning, tuple(shown(figures, f"{key}.{group}", form) for group in groups)))
        if key == "mia_population":
            lines += [_against(figures, groups, other) for other in others]
    return Table("Figures by group", tuple(groups), tuple(lines))


def _against(figures: Figures, groups: Sequence[str], other: str) -> Line:
    cells = tuple(shown(figures, f"mia_against_{other}.{group}", decimal) for group in groups)
    meaning = f"The same attack, with non-members from {other}, to which no client belongs."
    return Line(f"MIA accuracy against {other}", meaning, cells)


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
    figures: Figures, clients: pd.DataFrame, groups: Sequence[str], clusters: int, *, estimated: bool
) -> Table:
    """The table by cluster, as chosen after the last round; the risk only where it was ever estimated."""
    numbers = range(clusters)
    lines = [Line("Clients", "Those who chose its model after the last round.", _counts(clients, numbers))]
    if len(groups) > 1:
        lines += [Line(f"… of {each}", "", _counts(rows(clients, of_group(clients, each)), numbers)) for each in groups]
    for key, form, name, meaning in BY_CLUSTER:
        cells = tuple(shown(figures, f"clusters.{k}.{key}", form) for k in numbers)
        lines.append(Line(name, meaning, cells if key != "risk" or estimated else (DASH,) * clusters))
    over = rows(clients, column(clients, "violated") > 0)
    lines.append(
        Line("Limits exceeded", "Clients that tolerate less than the MIA accuracy above.", _counts(over, numbers))
    )
    return Table("Figures by cluster", tuple(f"cluster {k}" for k in numbers), tuple(lines))


def _counts(clients: pd.DataFrame, clusters: range) -> tuple[str, ...]:
    cluster = column(clients, "cluster")
    return tuple(str((cluster == k).sum()) for k in clusters)


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
    ("total", "In all", "All rounds and the last measurement; the parts below leave out evaluation."),
    ("train", "Training", "Clients training, and merging what they send back."),
    ("choose", "Choosing", "Clients scoring the models to choose among them."),
    ("red_team", "Red team", "Estimating risk during training."),
    ("property_attack", "Property attack", "Simulating updates during training."),
)


def overall(figures: Figures) -> Table:
    """Fairness between the groups, how the clusters relate to them, and what differential privacy guarantees."""
    lines = [Line(name, meaning, (shown(figures, key, form),)) for key, form, name, meaning in OVERALL]
    if not {"epsilon", "delta"} & set(figures):
        return Table("Fairness and grouping", ("value",), tuple(lines))
    return Table("Fairness, grouping and differential privacy", ("value",), (*lines, _privacy(figures)))


def _privacy(figures: Figures) -> Line:
    at = shown(figures, "delta", lambda value: f"{value:g}")
    meaning = (
        f"What differential privacy guarantees, at delta = {at}; smaller is more private. The largest of all clients; "
        "of the updates that they send, not of which model they choose."
    )
    if "epsilon" not in figures:
        meaning += " There is none: without noise, nothing is guaranteed."
    return Line("Epsilon", meaning, (shown(figures, "epsilon", decimal),))


def seconds(figures: Figures) -> Table:
    """Wall time; of a property attack only where there is one."""
    known = [each for each in SECONDS if each[0] != "property_attack" or "seconds.property_attack" in figures]
    lines = tuple(Line(name, what, (shown(figures, f"seconds.{key}", duration),)) for key, name, what in known)
    return Table("Time", ("wall time",), lines)
