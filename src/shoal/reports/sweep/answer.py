"""The answer of a sweep: differences between the settings of its first axis, paired by seed, in sentences."""

from collections.abc import Iterator, Sequence

import numpy as np

from shoal.reports.attack_titles import BY
from shoal.reports.sweep.labels import Labels
from shoal.reports.sweep.report_spec import ReportSpec, TableSpec
from shoal.reports.sweep.seed_statistics import SeedStatistics, estimate, metrics_in
from shoal.reports.sweep.sweep_metrics import format_value

USUAL = ("accuracy.overall", "exceeded.total", "violations.total")
"""Metrics that every answer has, where the runs have them."""

MOST_METRICS = 6
"""Metrics of an answer: the usual ones, then those of the tables and figures in their order."""

MOST_SETTINGS = 6
"""Settings that are compared with the first: of more, the last ones."""


def answer(statistics: SeedStatistics, spec: ReportSpec, labels: Labels) -> tuple[str, ...]:
    """One paragraph for each further setting of the first axis, against the first setting; none without such an axis.

    A difference is the mean over seeds of (setting - first setting), each seed first averaged over all other axes, with
    its 95 % interval (Student's t). It is "open" where the interval covers 0, or where there is none, as of fewer than
    six seeds that all differ by the same.
    """
    axis = next((name for name, settings in statistics.axes.items() if len(settings) > 1), None)
    if axis is None or statistics.results.empty:
        return ()
    keys = _metrics(statistics, spec)
    first, *settings = [labels.setting(setting) for setting in statistics.axes[axis]]
    if not keys:
        return ()
    average = [name for name in statistics.axes if name != axis]
    by_seed = statistics.metrics_by_seed(TableSpec(y=keys, rows=[axis], average=average))
    left_out = max(0, len(settings) - MOST_SETTINGS)
    paragraphs = []
    for name, values in list(zip(settings, by_seed.transpose(1, 0, 2)[1:], strict=True))[left_out:]:
        differences = [*_differences(values - by_seed[:, 0], keys, labels)]
        if differences:
            paragraphs.append(f"{labels.axis(axis)}, {name} against {first}: {'; '.join(differences)}.")
    return tuple(paragraphs)


def reading(statistics: SeedStatistics, labels: Labels) -> str:
    """How to read an answer."""
    varied = [name for name, settings in statistics.axes.items() if len(settings) > 1]
    over = f", each seed averaged over {' and '.join(map(labels.axis, varied[1:]))}" if varied[1:] else ""
    by = f" {about_views(statistics)}" if about_views(statistics) else ""
    if "references" in statistics.results:
        asked = sorted(statistics.results["references"].fillna(0).unique())
        references = " or ".join(f"{count:g}" for count in asked)
        by += (
            f" Exposure is by the attack chosen beforehand with {references} reference federations a run, or one that "
            "is certain to find more."
        )
    return (
        f"Differences are means over the seeds that both settings have{over}, with their 95 % intervals (paired by "
        "seed, Student's t), each by itself: of twenty true zeros, one is expected to look like a difference. Open: "
        f"the interval covers 0.{by}"
    )


def about_views(statistics: SeedStatistics) -> str:
    """Whose exposure the runs measure; empty where they do not say."""
    views = [*statistics.results["view"].unique()] if "view" in statistics.results else []
    whom = " and ".join(BY[view] for view in views)
    if len(views) > 1:
        return f"Exposure and limits are about {whom}: between these, differences compare attackers, not settings."
    return f"Exposure and limits are about {whom}." if views else ""


def _metrics(statistics: SeedStatistics, spec: ReportSpec) -> list[str]:
    shown = [key for shown in (*spec.tables.values(), *spec.figures.values()) for key in shown.y]
    measured = set(metrics_in(statistics.results, ("run", "seed", *statistics.axes)))
    return [key for key in dict.fromkeys([*USUAL, *shown]) if key in measured][:MOST_METRICS]


def _differences(values: np.ndarray, keys: Sequence[str], labels: Labels) -> Iterator[str]:
    """The differences ``values`` (seeds, metrics) in words; nothing of a metric without any."""
    result = estimate(values, "ci")
    for mean, half, n, by_seed, key in zip(result.mean, result.spread, result.n, values.T, keys, strict=True):
        if n == 0:
            continue
        name, measured = labels.key(key), by_seed[~np.isnan(by_seed)]
        if n == 1:
            yield f"{name} {_signed(mean, key)} in one seed, open without an interval"
        elif (measured == 0).all():
            yield f"{name} the same in all {n} seeds"
        else:
            low, high = mean - half, mean + half
            interval = f"95 % interval {_signed(low, key)} to {_signed(high, key)}, {n} seeds"
            # Small counts often differ alike in a few seeds, where t has no width: then n equal signs must be rare.
            if low <= 0 <= high or (low == high and 0.5 ** (n - 1) > 0.05):
                yield f"{name} open: {_signed(mean, key)} ({interval})"
            else:
                way = "higher" if mean > 0 else "lower"
                yield f"{name} {way} by {format_value(abs(mean), key)} ({interval})"


def _signed(value: float, key: str) -> str:
    text = format_value(value, key)
    return text if value <= 0 or float(value) == 0 else f"+{text}"
