"""The results of a sweep, one row per finished run, in results.csv, with wall times in timings.json."""

import json
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

import pandas as pd

from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require
from shoal.core.foreign_files import read_json
from shoal.metrics.summary import TEXT_KEYS, FlatSummary, Metrics, parse_summary
from shoal.reports.sweep.report_spec import Axes, Value
from shoal.runs.files import read_run, read_table
from shoal.simulation.measure import CLIENT_COLUMNS

TIMES = "seconds."
"""Wall times, which results.csv leaves out because they differ between runs of the same configuration."""


def row_of(out: Path, settings: Mapping[str, Value], seed: int) -> dict[str, Value]:
    """Return a finished run as a row: its directory's name, its settings, its seed, and all figures.

    The row repeats the figures ``clusters.<k>`` as ``larger`` and ``smaller`` (by cluster size) and as
    ``model.<group>`` (the model that most clients of the group chose).

    Raises:
        InputError: a file of the run is damaged.
    """
    figures = read_run(out)
    # As text, so that a column of 1 and 2.5 does not turn into 1.0 and 2.5.
    row: dict[str, Value] = {"run": out.name, **{axis: str(value) for axis, value in settings.items()}, "seed": seed}
    metrics = {key: value for key, value in figures.items() if key not in row and key not in (*TEXT_KEYS, "rounds")}
    # Last of the row's own columns, and read as text.
    row["view"] = str(figures.get("view", "outsider"))
    return row | metrics | by_size(figures) | _by_group(out, parse_summary(figures).by_cluster)


def by_size(figures: FlatSummary) -> dict[str, Value]:
    """Return the figures of the cluster with the most clients and of the cluster with the fewest clients.

    Among clusters of equal size, a higher accuracy counts as larger, and at equal accuracy a higher attack accuracy.

    >>> by_size({"clusters.0.clients": 3, "clusters.1.clients": 7, "clusters.1.mia": 0.5})
    {'larger.clients': 7, 'larger.mia': 0.5, 'smaller.clients': 3}
    """
    clusters = parse_summary(figures).by_cluster
    ordered = _largest_first(clusters)
    if len(ordered) < 2:
        return {}
    return _prefixed("larger", clusters[ordered[0]]) | _prefixed("smaller", clusters[ordered[-1]])


def _by_group(out: Path, clusters: Mapping[int, Metrics]) -> dict[str, Value]:
    """Return each group's figures, from the cluster that most of its clients chose, or the largest such cluster."""
    clients, ordered = read_table(out / "clients.csv", CLIENT_COLUMNS), _largest_first(clusters)
    row: dict[str, Value] = {}
    for group, chosen in clients.groupby("group", sort=False)["cluster"]:
        row |= _prefixed(f"model.{group}", clusters[max(ordered, key=chosen.tolist().count)])
    return row


def _largest_first(clusters: Mapping[int, Metrics]) -> list[int]:
    """Sort the clusters by size, the largest first, independent of their numbers."""
    first = ("clients", "accuracy", "mia")
    keys = (*first, *sorted({key for metrics in clusters.values() for key in metrics}.difference(first)))
    return sorted(clusters, key=lambda k: [clusters[k].get(key, -inf) for key in keys], reverse=True)


def _prefixed(name: str, metrics: Metrics) -> dict[str, Value]:
    return {f"{name}.{key}": value for key, value in metrics.items()}


def write_results(out: Path, rows: Sequence[Mapping[str, Value]]) -> None:
    """Write results.csv and timings.json. The bytes of results.csv depend only on the runs."""
    frame = pd.DataFrame([{key: value for key, value in row.items() if not key.startswith(TIMES)} for row in rows])
    times = {row["run"]: {key: value for key, value in row.items() if key.startswith(TIMES)} for row in rows}
    write_text(out / "results.csv", frame.to_csv(index=False) if len(frame) else "run\n")
    write_text(out / "timings.json", json.dumps(times, indent=2) + "\n")


def read_results(out: Path, axes: Axes) -> pd.DataFrame:
    """Read the finished runs in a sweep's directory: ``run``, one column per axis, ``seed``, and all figures.

    Raises:
        InputError: the directory has no results, or its files are damaged.
    """
    path = out / "results.csv"
    require(path.exists(), f"{out}: has no results.csv; run shoal sweep to finish the sweep")
    text = dict.fromkeys(("run", "view", *axes), str)
    try:
        frame = pd.read_csv(path, keep_default_na=False, na_values=[""], dtype=text)
        times = read_json(out / "timings.json")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read: {' '.join(str(error).split())}") from error
    require(
        isinstance(times, dict) and all(isinstance(time, dict) for time in times.values()),
        f"{out / 'timings.json'}: is damaged; the file must have one table per run",
    )
    if frame.empty:
        return pd.DataFrame(columns=["run", *axes, "seed"])
    missing = [name for name in ("run", *axes, "seed") if name not in frame]
    require(not missing, f"{path}: is damaged; missing columns: {', '.join(missing)}")
    for axis, settings in axes.items():
        values = {str(value): value for value in settings}
        strange = [text for text in frame[axis] if text not in values]
        require(not strange, f"{path}: is damaged; '{axis}' has an unknown value (got {strange[0] if strange else ''})")
        frame[axis] = pd.Series([values[text] for text in frame[axis]], dtype=object)
    timed = pd.DataFrame.from_dict(times, orient="index").rename_axis("run").reset_index()
    return frame.merge(timed, on="run", how="left")
