"""Finished runs side by side: a table, and what differs in words."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from shoal.core.errors import require
from shoal.reports.summary_text import NAMES, NOTICEABLE, Figures, clients_of, groups_of
from shoal.runs.files import read_run

ROWS = (
    ("accuracy.overall", "accuracy, all clients"),
    ("accuracy.{}", "accuracy, {}"),
    ("train_accuracy.{}", "train accuracy, {}"),
    ("mia.{}", "MIA accuracy, {}"),
    ("mia_population.{}", "MIA, population non-members, {}"),
    ("mia_auc.{}", "MIA AUC, {}"),
    ("gap.{}", "gap attack, {}"),
    ("violations.total", "violations, all clients"),
    ("violations.{}", "violations, {}"),
    ("migrated", "migrated clients"),
    ("clusters.*.clients", "clients by cluster"),
    ("clusters.*.mia", "MIA accuracy by cluster"),
    ("adjusted_rand_index", "recovered grouping (ARI)"),
    ("seconds.total", "seconds"),
)
"""What a comparison shows: keys of the summary, for each group or cluster, and how they are called."""


def compare(runs: Sequence[Path]) -> tuple[pd.DataFrame, str]:
    """Finished runs side by side: a row a figure, a column a run; and what differs, in words.

    Raises:
        InputError: fewer than two runs, one that is not finished, or runs of other data.
    """
    require(len(runs) >= 2, f"a comparison takes at least two runs; got {len(runs)}")
    figures = [read_run(path) for path in runs]
    groups = groups_of(figures[0])
    for path, each in zip(runs[1:], figures[1:], strict=True):
        same = groups_of(each) == groups and each["dataset"] == figures[0]["dataset"]
        require(same, f"{path}: is a run on other data or groups than {runs[0]}; compare runs of the same federation")
    clusters = max(int(key.split(".")[1]) for each in figures for key in each if key.startswith("clusters.")) + 1
    table = {}
    for key, label in ROWS:
        if "*" in key:
            cells = [[each.get(key.replace("*", str(k))) for k in range(clusters)] for each in figures]
            table[label] = [" / ".join("-" if value is None else _cell(value) for value in cell) for cell in cells]
            continue
        for group in groups if "{}" in key else [""]:
            found = [each.get(key.format(group)) for each in figures]
            table[label.format(group)] = ["-" if value is None else _cell(value) for value in found]
    titles = [NAMES.get(str(each["algorithm"]), str(each["algorithm"])) for each in figures]
    if len(set(titles)) < len(titles):
        titles = [path.name for path in runs]
    frame = pd.DataFrame.from_dict(table, orient="index", columns=titles)
    return frame, " ".join(
        _difference(figures[0], each, titles[0], title) for each, title in zip(figures[1:], titles[1:], strict=True)
    )


def _difference(first: Figures, other: Figures, first_title: str, title: str) -> str:
    """What the second run does to accuracy, exposure and limits, whatever it does."""
    parts = [_moved("accuracy", first, other, "accuracy.overall", higher="gains", lower="loses")]
    parts += [
        _moved(f"the exposure of {group}", first, other, f"mia.{group}", higher="raises", lower="lowers")
        for group in groups_of(first)
    ]
    before, after = int(first["violations.total"]), int(other["violations.total"])
    if after == before:
        parts.append(f"leaves the number of exceeded limits at {after}")
    else:
        parts.append(
            f"{'lowers' if after < before else 'raises'} the number of exceeded limits from {before} to {after}"
        )
    moved = int(other["migrated"])
    parts.append(
        f"has {moved} of {clients_of(other)} clients in a cluster where another group is in the majority "
        f"(against {int(first['migrated'])})"
    )
    drained = [key.split(".")[1] for key, value in other.items() if key.endswith(".clients") and value == 0]
    if drained:
        parts.append(f"leaves cluster {', '.join(drained)} empty")
    return f"Against {first_title}, {title} {', '.join(parts[:-1])} and {parts[-1]}."


def _moved(what: str, first: Figures, other: Figures, key: str, *, higher: str, lower: str) -> str:
    before, after = float(first[key]), float(other[key])
    if abs(after - before) < NOTICEABLE:
        return f"leaves {what} about where it was ({before:.3f}, now {after:.3f})"
    return f"{higher if after > before else lower} {what} ({before:.3f}, now {after:.3f})"


def _cell(value: float | int | str) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
