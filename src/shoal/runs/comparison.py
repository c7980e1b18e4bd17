"""A comparison of finished runs: their settings, their metrics, and their differences in sentences."""

import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from shoal.audit.finding import BY, Estimate, findings, run_findings
from shoal.control import DIRECTIVE_COLUMN
from shoal.core.errors import describe, path_of, require
from shoal.core.formats import ACCURACY, number, shorten
from shoal.metrics.metric_table import METRICS, Metric, is_declared, metric_of
from shoal.metrics.summary import Summary
from shoal.reports.run.run_verdict import of_groups
from shoal.runs.files import decisive_settings
from shoal.runs.result import Result, read_tables

ROWS = (
    "accuracy.overall", "accuracy", "train_accuracy", "references", "mia", "mia_null_high", "mia_population", "mia_auc",
    "gap", "exposure", "exceeded.total", "violations.total", "violations", "migrated", "clusters.clients",
    "clusters.mia", "clusters.over_limit", "clusters.limit_unmet", "adjusted_rand_index", "epsilon", "seconds.total",
)  # fmt: skip
"""The rows of a comparison."""

CAVEAT = (
    "Accuracy is measured on the test examples of a client's whole group. The 95 % intervals are over records and "
    "hold jointly for all differences in a sentence. Two runs are a single trial; shoal sweep compares several seeds."
)
"""The last sentence of every comparison."""

MODELS = "clusters."
"""The prefix of rows about models."""

ABSENT = "-"
"""The cell of a run without the metric or the key."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """A comparison of finished runs; both tables have one column per run.

    Args:
        settings: one row per key that differs between the configurations, except keys that only change the speed.
        metrics: one row per metric of any run.
        sentences: one sentence per run on its differences from the first run, and a caveat at the end.
        summaries: the summary of each run, by column name.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> runs = [shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=rounds) for rounds in (1, 2)]
        >>> shoal.compare(runs).settings.loc["algorithm.rounds"].to_dict()
        {'run 1': '1', 'run 2': '2'}
    """

    settings: pd.DataFrame
    metrics: pd.DataFrame
    sentences: tuple[str, ...]
    summaries: Mapping[str, Summary]

    def __repr__(self) -> str:
        return shorten(f"Comparison({', '.join(map(str, self.metrics.columns))}; {len(self.metrics)} metrics)")

    def _repr_html_(self) -> str:
        paragraphs = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.sentences)
        return f"{self.settings.to_html() if len(self.settings) else ''}{self.metrics.to_html()}{paragraphs}"


def compare(runs: Sequence[str | Path | Result], *, allow_code: bool = False) -> Comparison:
    """Compare finished runs, as `shoal compare` does.

    Args:
        runs: at least two directories of finished runs, or results.
        allow_code: see `shoal.load`.

    Raises:
        InputError: the list has fewer than two runs, a run is unfinished or damaged, or the runs have different data or
            metrics.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.FedAvg(), shoal.IFCA(clusters=2)
        >>> results = [shoal.simulate(federation, model, algorithm, local, rounds=2) for algorithm in algorithms]
        >>> comparison = shoal.compare(results)
        >>> comparison.metrics.loc["train accuracy, all"].to_dict()
        {'FedAvg': '0.500', 'IFCA': '1.000'}
    """
    several = isinstance(runs, Sequence) and not isinstance(runs, str)
    require(several, f"'runs' must be a list of directories or results (got {describe(runs)})")
    require(len(runs) >= 2, f"a comparison needs at least two runs (got {len(runs)})")
    results = [run if isinstance(run, Result) else _read(path_of("runs", run), allow_code=allow_code) for run in runs]
    names = [f"run {i}" if isinstance(run, Result) else str(run) for i, run in enumerate(runs, 1)]
    summaries, metrics = [result.summary for result in results], [result.description.metric for result in results]
    accuracies = [_accuracy(result) for result in results]
    first, *rest = summaries
    for name, other in zip(names[1:], rest, strict=True):
        same = list(other.by_group) == list(first.by_group) and other.run["dataset"] == first.run["dataset"]
        require(same, f"{name}: the data or groups differ from {names[0]}; compare runs of the same federation")
    for name, metric in zip(names, metrics, strict=True):
        fits = metric == metrics[0]
        require(fits, f"{name}: the metric must be {metrics[0]}, as in {names[0]} (got {metric})")
    algorithms, folders = (
        [result.description.algorithm_title for result in results],
        [Path(name).name for name in names],
    )
    titles = next((names for names in (algorithms, folders) if len(set(names)) == len(names)), names)
    declared = {metric.key: metric for result in results for metric in result.description.metrics}
    settings = _differences([decisive_settings(tomllib.loads(result.description.settings)) for result in results])
    table = {"view of exposure": [summary.view for summary in summaries]} | _metrics(summaries, metrics[0], declared)
    table |= _verdicts(results)
    return Comparison(
        settings=pd.DataFrame.from_dict(settings, orient="index", columns=titles),
        metrics=pd.DataFrame.from_dict(table, orient="index", columns=titles),
        sentences=(
            *(
                describe_difference(first, other, (accuracies[0], accuracy), titles[0], title, metrics[0])
                for other, accuracy, title in zip(rest, accuracies[1:], titles[1:], strict=True)
            ),
            CAVEAT,
        ),
        summaries=dict(zip(titles, summaries, strict=True)),
    )


def _read(out: Path, *, allow_code: bool) -> Result:
    result = read_tables(out, allow_code=allow_code)
    rows, clients = len(result.clients), result.summary.clients
    require(rows == clients, f"{out / 'clients.csv'}: is damaged; {clients} clients need {clients} rows (got {rows})")
    return result


def _accuracy(result: Result) -> Estimate:
    """Return a run's accuracy over all clients, with an interval.

    A group's weight is its share of the clients. The effective number of test examples is ``1 / sum(share^2 / n)``.
    """
    shares, effective = result.clients["group"].value_counts(normalize=True), 0.0
    examples = of_groups(result.summary, "test_examples")
    if set(shares.index) == {*examples}:
        effective = 1 / sum(shares[group] ** 2 / n for group, n in examples.items())
    return Estimate.of_rate(result.summary.overall["accuracy.overall"], effective)


def _differences(configurations: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the keys with different values, and the value in each configuration."""

    def cell(value: object) -> str:
        return ABSENT if value is None else value if isinstance(value, str) else json.dumps(value)

    keys = dict.fromkeys(key for settings in configurations for key in settings)
    rows = {key: [cell(settings.get(key)) for settings in configurations] for key in keys}
    return {key: cells for key, cells in rows.items() if len(set(cells)) > 1}


def _metrics(summaries: Sequence[Summary], measured: str, declared: Mapping[str, Metric]) -> dict[str, list[str]]:
    """Return the cells by row label; ``measured`` is the runs' metric, such as accuracy."""
    models = sorted({k for summary in summaries for k in summary.by_cluster})
    table: dict[str, list[str]] = {}
    of_models = [
        f"{MODELS}{key}" for summary in summaries for metrics in summary.by_cluster.values() for key in metrics
    ]
    further = [key for key in of_models if key.startswith(f"{MODELS}{DIRECTIVE_COLUMN}")]
    of_runs = [key for summary in summaries for part in (summary.overall, *summary.by_group.values()) for key in part]
    further += [key for key in [*of_runs, *of_models] if not is_declared(key.removeprefix(MODELS))]
    for row in dict.fromkeys([*ROWS, *further]):
        key = row.removeprefix(MODELS)
        metric = metric_of(key, measured=measured, declared=declared)
        of_groups = [[summary.by_group[group].get(key) for summary in summaries] for group in summaries[0].by_group]
        if row != key:
            values = [[summary.by_cluster.get(k, {}).get(key) for k in models] for summary in summaries]
            table[f"{metric.label} by cluster"] = [" / ".join(_cell(metric, value) for value in row) for row in values]
        elif any(value is not None for values in of_groups for value in values):
            for group, values in zip(summaries[0].by_group, of_groups, strict=True):
                table[f"{metric.label}, {group}"] = [_cell(metric, value) for value in values]
        else:
            label = metric.label if metric.key == key else f"{metric.label}, all clients"
            table[label] = [_cell(metric, summary.overall.get(key)) for summary in summaries]
    return {label: cells for label, cells in table.items() if set("".join(cells)) - {*ABSENT, *" / "}}


def _verdicts(results: Sequence[Result]) -> dict[str, list[str]]:
    """Return the exposure cells by view and group, from each run's audit or, without an audit, from its own attack."""
    columns: list[dict[str, str]] = []
    for result in results:
        audit = result.audit_in_directory
        rows = run_findings(result.summary) if audit is None else findings(audit)
        columns.append({f"{row.group}, to {BY[row.view]}": f"{row.verdict}: {row.accuracy.figure}" for row in rows})
    labels = dict.fromkeys(label for column in columns for label in column)
    return {label: [column.get(label, ABSENT) for column in columns] for label in labels}


def describe_difference(
    first: Summary, other: Summary, accuracies: tuple[Estimate, Estimate], first_title: str, title: str, metric: str
) -> str:
    """Describe how the second run's metric, exposure and limits differ from the first run's.

    A difference counts if its simultaneous interval excludes 0.
    """
    same_view = first.view == other.view
    exposed = {
        group: (Estimate.of(metrics, "mia"), Estimate.of(other.by_group[group], "mia"))
        for group, metrics in first.by_group.items()
        if same_view and "mia" in metrics and "mia" in other.by_group[group]
    }
    before, after = (summary.overall["accuracy.overall"] for summary in (first, other))
    if metric == ACCURACY:
        parts = [_change("accuracy", *accuracies, "gains", "loses", among=1 + len(exposed))]
    else:
        # No interval: the examples do not tell the spread of another metric.
        parts = [f"has {metric} {number(after)} (against {number(before)})"]
    parts += [
        _change(f"the {METRICS['mia'].name} on {group}", *ends, "raises", "lowers", among=1 + len(exposed))
        for group, ends in exposed.items()
    ]
    counts = ("references", "exceeded.total", "migrated")
    before, after = ([int(summary.overall.get(key, 0)) for key in counts] for summary in (first, other))
    if not same_view:
        whose = f"measures the exposure to {BY[other.view]} (against {BY[first.view]})"
        parts.append(f"{whose}, so exposure and limits are not compared")
    elif before[0] != after[0]:
        federations = f"has {after[0]} reference federations (against {before[0]})"
        parts.append(f"{federations}, so the attacks on both differ")
    minority = "clients in a cluster where another group is in the majority"
    if same_view:
        parts.append(
            f"exceeds the limits of {after[1]} of {other.clients} clients at 95 % confidence (against {before[1]})"
        )
    if "migrated" in first.overall and "migrated" in other.overall:
        parts.append(f"has {after[2]} of {other.clients} {minority} (against {before[2]})")
    drained = [str(k) for k, metrics in other.by_cluster.items() if metrics.get("clients") == 0]
    if drained:
        parts.append(f"leaves cluster {', '.join(drained)} empty")
    return f"Against {first_title}, {title} {', '.join(parts[:-1])} and {parts[-1]}."


def _change(what: str, before: Estimate, after: Estimate, higher: str, lower: str, *, among: int) -> str:
    difference = after.among(among).minus(before.among(among))
    ends = f"{difference.value:+.3f}, 95 % interval {difference.low:+.3f} to {difference.high:+.3f}"
    if not difference.low <= difference.high:
        ends = f"{difference.value:+.3f}, without an interval"
    way = higher if difference.low > 0 else lower if difference.high < 0 else "shows no clear difference in"
    return f"{way} {what} ({before.text}, now {after.text}: {ends})"


def _cell(metric: Metric, value: float | None) -> str:
    if value is None:
        return ABSENT
    return str(value) if isinstance(value, int) else metric.plain(value)
