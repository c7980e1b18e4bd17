"""Finished runs side by side: what was asked of each, what came out, and the differences in words."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.config.kinds import algorithm_title
from shoal.config.schema import SIMULATION, read_config
from shoal.config.validation import read_toml
from shoal.control import COLUMN
from shoal.core.errors import require
from shoal.reports.formats import ACCURACY, number
from shoal.reports.summary_text import NOTICEABLE
from shoal.runs.differences import decisive_settings
from shoal.runs.files import read_summary, read_table
from shoal.runs.record import read_description
from shoal.simulation.result import CLIENT_COLUMNS
from shoal.simulation.summary import Summary

OVERALL, BY_GROUP, BY_CLUSTER = "overall", "by group", "by cluster"

ROWS = (
    (OVERALL, "accuracy.overall", "accuracy, all clients"),
    (BY_GROUP, "accuracy", "accuracy, {}"),
    (BY_GROUP, "train_accuracy", "train accuracy, {}"),
    (OVERALL, "references", "reference federations"),
    (BY_GROUP, "mia", "MIA accuracy, {}"),
    (BY_GROUP, "mia_population", "MIA, population non-members, {}"),
    (BY_GROUP, "mia_auc", "MIA AUC, {}"),
    (BY_GROUP, "gap", "gap attack, {}"),
    (BY_GROUP, "exposure", "exposure by the strongest attack, {}"),
    (OVERALL, "exceeded.total", "limits exceeded beyond chance, all clients"),
    (OVERALL, "violations.total", "violations, all clients"),
    (BY_GROUP, "violations", "violations, {}"),
    (OVERALL, "migrated", "migrated clients"),
    (BY_CLUSTER, "clients", "clients by cluster"),
    (BY_CLUSTER, "mia", "MIA accuracy by cluster"),
    (BY_CLUSTER, "over_limit", "share of members over their limit by cluster"),
    (BY_CLUSTER, "limit_unmet", "limits cannot be met by cluster (1: yes)"),
    (OVERALL, "adjusted_rand_index", "recovered grouping (ARI)"),
    (OVERALL, "epsilon", "epsilon, largest of the clients"),
    (OVERALL, "seconds.total", "seconds"),
)
"""The rows of a comparison: whose metrics, which, and their names."""


ABSENT = "-"
"""The cell of a run without the metric or the key."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """Finished runs side by side; both tables have one column per run.

    Args:
        settings: one row per key of the configuration in which the runs differ, but for those that only decide how
            fast a run goes.
        metrics: one row per metric that one of the runs has.
        sentences: one for each run but the first, against the first.
    """

    settings: pd.DataFrame
    metrics: pd.DataFrame
    sentences: tuple[str, ...]


def compare(runs: Sequence[Path]) -> Comparison:
    """Compare finished runs.

    Raises:
        InputError: fewer than two runs, one that is not finished or is damaged, or runs of other data or with
            another metric.
    """
    require(len(runs) >= 2, f"a comparison takes at least two runs; got {len(runs)}")
    summaries = [_read(path) for path in runs]
    first, *others = summaries
    for path, each in zip(runs[1:], others, strict=True):
        same = list(each.by_group) == list(first.by_group) and each.run["dataset"] == first.run["dataset"]
        require(same, f"{path}: is a run on other data or groups than {runs[0]}; compare runs of the same federation")
    metrics = [read_description(path).metric for path in runs]
    for path, metric in zip(runs, metrics, strict=True):
        require(
            metric == metrics[0], f"{path}: reports {metric}, but {runs[0]} {metrics[0]}; compare runs of one metric"
        )
    titles = _titles(runs, summaries)
    asked = _differing([_asked(path / "config.toml") for path in runs])
    return Comparison(
        settings=pd.DataFrame.from_dict(asked, orient="index", columns=titles),
        metrics=pd.DataFrame.from_dict(_metrics(summaries, metrics[0]), orient="index", columns=titles),
        sentences=tuple(
            _difference(first, each, titles[0], title, metrics[0])
            for each, title in zip(others, titles[1:], strict=True)
        ),
    )


def _asked(path: Path) -> dict[str, Any]:
    """What was asked of a run, by configuration or from Python."""
    table = read_toml(path)
    if SIMULATION in table:
        return {f"{SIMULATION}.{key}": text for key, text in table[SIMULATION]["settings"].items()}
    return decisive_settings(read_config(path))


def _read(out: Path) -> Summary:
    summary, path = read_summary(out), out / "clients.csv"
    rows = len(read_table(path, CLIENT_COLUMNS))
    require(rows == summary.clients, f"{path}: is damaged: it has {rows} rows for {summary.clients} clients")
    return summary


def _titles(runs: Sequence[Path], summaries: Sequence[Summary]) -> list[str]:
    """The runs' algorithms; where two have the same, the names of their directories, or else their paths."""
    algorithms = [algorithm_title(str(each.run["algorithm"])) for each in summaries]
    names = [path.name for path in runs]
    return next(
        (titles for titles in (algorithms, names) if len(set(titles)) == len(titles)), [str(path) for path in runs]
    )


def _differing(asked: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The keys whose values are not all the same, with the value in each configuration."""
    keys = dict.fromkeys(key for each in asked for key in each)
    rows = {key: [_setting(each.get(key)) for each in asked] for key in keys}
    return {key: cells for key, cells in rows.items() if len(set(cells)) > 1}


def _setting(value: object) -> str:
    """A configuration's value as its file has it, but for quotes around words."""
    if value is None:
        return ABSENT
    return value if isinstance(value, str) else json.dumps(value)


def _metrics(summaries: Sequence[Summary], measured: str) -> dict[str, list[str]]:
    """The cells by label; ``measured`` is the runs' metric, accuracy or another."""
    first = summaries[0]
    clusters = 1 + max((k for each in summaries for k in each.by_cluster), default=-1)
    table = {}
    for whose, metric, name in (*ROWS, *_directives(summaries)):
        label = name.replace("accuracy", measured) if "accuracy" in metric else name
        if whose == OVERALL:
            table[label] = [_cell(each.overall.get(metric)) for each in summaries]
        elif whose == BY_GROUP:
            for group in first.by_group:
                table[label.format(group)] = [_cell(each.by_group[group].get(metric)) for each in summaries]
        else:
            table[label] = [
                " / ".join(_cell(each.by_cluster.get(k, {}).get(metric)) for k in range(clusters)) for each in summaries
            ]
    return {label: cells for label, cells in table.items() if set("".join(cells)) - {*ABSENT, *" / "}}


def _directives(summaries: Sequence[Summary]) -> Sequence[tuple[str, str, str]]:
    """Rows of the directives that clusters were given last; which there are depends on the runs."""
    names = dict.fromkeys(name for each in summaries for own in each.by_cluster.values() for name in own)
    given = [name for name in names if name.startswith(COLUMN)]
    return [(BY_CLUSTER, name, f"directive {name.removeprefix(COLUMN)} by cluster") for name in given]


def _difference(first: Summary, other: Summary, first_title: str, title: str, metric: str) -> str:
    """The second run's accuracy (or other metric), exposure and violations against the first's."""
    before, after = (each.overall["accuracy.overall"] for each in (first, other))
    if metric == ACCURACY:
        parts = [_change(metric, before, after, higher="gains", lower="loses")]
    else:
        # Which difference of it would be noticed depends on its unit.
        parts = [f"moves {metric} from {number(before)} to {number(after)}"]
    for group, metrics in first.by_group.items():
        # Directories of earlier versions know the configured attack alone.
        known = [key for key in ("exposure", "mia") if key in metrics and key in other.by_group[group]]
        if known:
            before, after = metrics[known[0]], other.by_group[group][known[0]]
            parts.append(_change(f"the exposure of {group}", before, after, higher="raises", lower="lowers"))
    asked = [int(each.overall.get("references", 0)) for each in (first, other)]
    if asked[0] != asked[1]:
        parts.append(
            f"has {asked[1]} reference federations (against {asked[0]}), so exposure and limits are not by the same "
            "attacks"
        )
    limits = (
        "exceeded.total" if all("exceeded.total" in each.overall for each in (first, other)) else "violations.total"
    )
    before, after = (int(each.overall[limits]) for each in (first, other))
    if after == before:
        parts.append(f"leaves the number of exceeded limits at {after}")
    else:
        way = "lowers" if after < before else "raises"
        parts.append(f"{way} the number of exceeded limits from {before} to {after}")
    before, after = (int(each.overall["migrated"]) for each in (first, other))
    parts.append(
        f"has {after} of {other.clients} clients in a cluster where another group is in the majority (against {before})"
    )
    drained = [str(k) for k, metrics in other.by_cluster.items() if metrics.get("clients") == 0]
    if drained:
        parts.append(f"leaves cluster {', '.join(drained)} empty")
    return f"Against {first_title}, {title} {', '.join(parts[:-1])} and {parts[-1]}."


def _change(what: str, before: float, after: float, *, higher: str, lower: str) -> str:
    if abs(after - before) < NOTICEABLE:
        return f"leaves {what} about where it was ({before:.3f}, now {after:.3f})"
    return f"{higher if after > before else lower} {what} ({before:.3f}, now {after:.3f})"


def _cell(value: float | None) -> str:
    if value is None:
        return ABSENT
    return f"{value:.3f}" if isinstance(value, float) else str(value)
