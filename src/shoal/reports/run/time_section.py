"""The section of a run's page on its time: the parts of the total as one bar, and in a table."""

from collections.abc import Mapping

from matplotlib.figure import Figure as MplFigure

from shoal.core.formats import DASH, capitalized, format_duration, percent
from shoal.metrics.metric_table import METRICS
from shoal.metrics.summary import Metrics
from shoal.reports import plotting as plot
from shoal.reports.page import Section
from shoal.reports.table import Table, metric_row, metric_table

SECONDS = tuple(key for key, metric in METRICS.items() if metric.format == "seconds")

_LEAST, _MOST = 0.02, 6
"""The smallest share that the bar shows by itself, and how many; smaller ones are one part at its end."""

_INSIDE = 0.14
"""The smallest share with room for a number above it."""


def time_section(metrics: Metrics) -> Section:
    """The wall time of a run by its parts, which add up to the total; ``metrics`` are of the whole run."""
    shares = {} if not metrics.get("seconds.total") else _shares(metrics)
    figures = () if len(shares) < 2 else [_bar(shares, metrics["seconds.total"])]
    return Section("time", "Where the time went", table=seconds(metrics), figures=figures)


def seconds(metrics: Metrics) -> Table:
    """Wall time, in all and of its parts, with the part's share and the median of a round where there is one."""
    rows = []
    for key in ("seconds.total", *_parts(metrics)):
        metric, part = METRICS[key], key.removeprefix("seconds.")
        share, median = (metrics.get(f"seconds.{about}.{part}") for about in ("share", "round"))
        texts = (DASH if share is None else percent(share), DASH if median is None else _short(median))
        if metrics.get(key) != 0:
            rows.append(metric_row(metric, metric.text(metrics.get(key)), *texts, family="time, "))
    return metric_table("Where the time went", ["wall time", "share", "median of a round"], rows)


def _short(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 0.95 else f"{1000 * seconds:.0f} ms"


def _parts(metrics: Metrics) -> list[str]:
    """The keys of the parts that a run has. "train" is a sum of three, and a part by itself in a run without them."""
    whole = ("seconds.total", "seconds.train") if "seconds.local_training" in metrics else ("seconds.total",)
    return [key for key in SECONDS if key in metrics and key not in whole]


def _shares(metrics: Metrics) -> dict[str, float]:
    """The shares of the total by the parts' names, largest first; the small ones, and what no part has, at the end."""
    by_key = {key: metrics[key] / metrics["seconds.total"] for key in _parts(metrics) if key != "seconds.other"}
    largest = sorted(by_key, key=lambda key: -by_key[key])[:_MOST]
    shown = {METRICS[key].name.removeprefix("time, "): by_key[key] for key in largest if by_key[key] >= _LEAST}
    rest = 1 - sum(shown.values())
    return shown | ({"everything else": rest} if rest > 0.005 else {})


def _bar(shares: Mapping[str, float], total: float) -> plot.Figure:
    texts = {name: f"{name}, {percent(share)}" for name, share in shares.items()}

    def draw(figure: MplFigure) -> None:
        axes, left = figure.subplots(), 0.0
        for i, (name, share) in enumerate(shares.items()):
            color = "#999999" if name == "everything else" else plot.cluster_style(i).color
            axes.barh(0, share, left=left, color=color, edgecolor="white", linewidth=1.5, label=texts[name])
            if share >= _INSIDE:
                axes.text(left + share / 2, 0.45, percent(share), ha="center", va="bottom")
            left += share
        axes.set_xlim(0, max(1.0, left))
        axes.set_axis_off()
        plot.legend(figure, axes.get_legend_handles_labels()[0], columns=2)

    words = f"One bar, {format_duration(total)} in all: {'; '.join(texts.values())}."
    largest = max(shares, key=lambda name: shares[name])
    title = f"{capitalized(largest)} takes {percent(shares[largest])} of {format_duration(total)}"
    return plot.draw_figure("time", title, "Shares of wall time.", words, draw, height=1.3)
