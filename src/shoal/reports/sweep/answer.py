"""The answer of a sweep: which setting is best, whether that is shown, who is exposed, and all settings as rows."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import nan
from typing import Any

from shoal.audit.finding import BY, MOST_NAMES, VERDICTS, Estimate, Verdict
from shoal.core.formats import capitalized, join_words
from shoal.reports.exposure import Headline
from shoal.reports.sweep.report_spec import ReportSpec, TableSpec, Value
from shoal.reports.sweep.seed_statistics import (
    Best,
    Difference,
    SeedStatistics,
    SeedValues,
    called,
    estimate,
    metrics_in,
)
from shoal.reports.sweep.sweep_metrics import Labels, format_estimate, format_value, groups_in, metric_at
from shoal.reports.table import Cell, ReportTable, TableRow, heads, row

MOST_METRICS = 8
"""Metrics of the table of settings: the usual ones, then those of the file's tables and figures in their order."""

MOST_CONDITIONS = 8
"""Combinations of the further axes that the table of settings has rows for; of more, only their average."""

COSTS = ("epsilon", "seconds.total")
"""Metrics whose differences are not tested: a promise is exact, and wall time depends on the machine."""


@dataclass(frozen=True, eq=False)
class Settings:
    """The settings of the first axis that varies, side by side; of a sweep without one, all runs together.

    Args:
        statistics: of the finished runs.
        labels: the names of axes, settings and metrics.
        keys: the metrics to compare.
        exposure: the MIA accuracy of the group that is most exposed over all runs; "": no run was attacked.
    """

    statistics: SeedStatistics
    labels: Labels
    keys: Sequence[str]
    exposure: str

    @staticmethod
    def of(statistics: SeedStatistics, spec: ReportSpec, labels: Labels) -> "Settings":
        """Those of a sweep that shows ``spec``."""
        groups, results = _groups(statistics), statistics.results
        accuracy = results.reindex(columns=[f"accuracy.{group}" for group in groups]).mean().dropna()
        exposure = results.reindex(columns=[f"mia.{group}" for group in groups]).mean().dropna()
        worst = [str(accuracy.idxmin())] if len(accuracy) > 1 else []
        exposed = [str(exposure.idxmax())] if len(exposure) else []
        shown = [key for shown in (*spec.tables.values(), *spec.figures.values()) for key in shown.y]
        measured = set(metrics_in(results, ("run", "seed", *statistics.axes)))
        limits = "exceeded.total" if "exceeded.total" in measured else "violations.total"
        keys = dict.fromkeys(["accuracy.overall", *worst, *exposed, limits, *COSTS, *shown])
        return Settings(statistics, labels, [key for key in keys if key in measured][:MOST_METRICS], "".join(exposed))

    @property
    def axis(self) -> str | None:
        """The first axis that varies."""
        return next((name for name, values in self.statistics.axes.items() if len(values) > 1), None)

    @property
    def further(self) -> list[str]:
        """The other axes that vary."""
        return [name for name, values in self.statistics.axes.items() if len(values) > 1 and name != self.axis]

    @property
    def names(self) -> list[str]:
        """The settings in words."""
        return [*map(self.labels.setting, self.statistics.axes[self.axis])] if self.axis else ["every run"]

    def by_seed(self, keys: Sequence[str], where: Mapping[str, Value] | None = None) -> SeedValues:
        """(seeds, settings, metrics) the metrics at ``where`` on the further axes; None: averaged over these."""
        rows = [] if self.axis is None else [self.axis]
        average = self.further if where is None else []
        return self.statistics.metrics_by_seed(
            TableSpec(y=[*keys], rows=rows, where=dict(where or {}), average=average)
        )


def sweep_headlines(settings: Settings) -> list[Headline]:
    """Which setting is best and which exposes least, each against the next one, and who is exposed in which runs."""
    found = []
    for key, question in (
        ("accuracy.overall", "has the highest accuracy"),
        (settings.exposure, "has the lowest exposure"),
    ):
        best = settings.axis and key in settings.keys and Best.of(
            settings.by_seed([key])[:, :, 0], settings.names, key, metric_at(key).better
        )  # fmt: skip
        if settings.axis and best:
            about = f"Which {settings.labels.axis(settings.axis)} {question}? ({settings.labels.key(key)})"
            found.append(Headline(about, _said(best, key)))
    return [*found, Headline("Who is exposed, to whom?", _exposed(settings))]


def _said(best: Best, key: str) -> str:
    """The best setting with its lead on the next one that it is not told from, or else on the next one."""
    value = format_value(best.mean, key)
    if best.same:
        return f"None: all have {value} in every seed."
    against, *untold = best.untold or [*best.others][:1]
    lead = best.others[against]
    low = metric_at(key).better == "lower"
    gap = f"{format_value(abs(lead.mean), key)} {'below' if low else 'above'} {against}"
    leads = f"{best.setting} has the {'lowest' if low else 'highest'} mean, {value}, {gap}"
    seeds = f"{lead.n} seed{'s' * (lead.n != 1)}" + ", all differences at once" * (lead.tests > 1)
    if not lead.interval:
        return f"Not decided: {leads}, in one seed. {capitalized(lead.more)}."
    interval = f"95 % interval {lead.interval}; {seeds}"
    if lead.shown:
        return f"{leads}, the next. The difference is shown ({interval})."
    more = f"{capitalized(lead.more)}."
    if lead.n > 2:
        more = f"To show it, were it the true lead, takes {lead.more} (power 80 %)."
    either = f" Also within the margin of error: {join_words(untold, MOST_NAMES)}." if untold else ""
    return f"Not decided: {leads}, but the interval covers 0 ({interval}). {more}{either}"


def _exposed(settings: Settings) -> str:
    """In how many runs of each setting each group has each verdict, by the run's own interval."""
    results, statistics = settings.statistics.results, settings.statistics
    groups = [group for group in _groups(statistics) if f"mia.{group}" in results]
    if not groups:
        return "Not known: no run was attacked."
    views = [BY[view] for view in results["view"].unique()] if "view" in results else []
    whom = f" to {' or '.join(views)}" if views else ""
    values = statistics.axes[settings.axis] if settings.axis else [None]
    of_setting = [results if settings.axis is None else results[results[settings.axis] == value] for value in values]
    said = []
    for group in groups:
        verdicts = [[_verdict(run, group, len(groups)) for run in runs.to_dict("records")] for runs in of_setting]
        counts = {verdict: [found.count(verdict) for found in verdicts] for verdict in VERDICTS}
        shown = [
            f"{verdict} in {_counts(many, [*map(len, of_setting)], settings)}"
            for verdict, many in counts.items()
            if any(many)
        ]
        said.append(f"{capitalized(group)}{whom}: {', '.join(shown)}.")
    return " ".join(said)


def _groups(statistics: SeedStatistics) -> list[str]:
    return sorted(groups_in(map(str, statistics.results)))


def _verdict(run: Mapping[Hashable, Any], group: str, groups: int) -> Verdict:
    values = (run.get(f"{key}.{group}") for key in ("mia", "mia_low", "mia_high"))
    return Estimate(*(nan if value is None else float(value) for value in values)).among(groups).verdict


def _counts(certain: Sequence[int], runs: Sequence[int], settings: Settings) -> str:
    if len({*zip(certain, runs, strict=True)}) == 1:
        return f"{certain[0]} of {runs[0]} runs" + " of each" * (len(runs) > 1)
    if len(runs) > 3:
        return f"{sum(certain)} of {sum(runs)} runs"
    named = zip(certain, runs, settings.names, strict=True)
    return ", ".join(f"{many} of {of} runs with {called(name)}" for many, of, name in named)


def settings_table(settings: Settings) -> ReportTable:
    """A row for each setting: means, and below them the difference to the first setting or what would settle it."""
    labels, rows = settings.labels, []
    conditions = [*product(*(settings.statistics.axes[axis] for axis in settings.further))]
    if not settings.further:
        rows = [*_rows(settings, settings.by_seed(settings.keys))]
    else:
        over = f"averaged over {' and '.join(map(labels.axis, settings.further))}"
        rows = [row(over, style="of"), *_rows(settings, settings.by_seed(settings.keys))]
        for values in conditions if len(conditions) <= MOST_CONDITIONS else ():
            where = dict(zip(settings.further, values, strict=True))
            heading = ", ".join(f"{labels.axis(axis)} {labels.setting(value)}" for axis, value in where.items())
            rows.append(row(heading, style="of"))
            rows += _rows(settings, settings.by_seed(settings.keys, where=where))
    head = labels.axis(settings.axis) if settings.axis else "runs"
    return ReportTable(
        heads([head], map(labels.key, settings.keys)), tuple(rows), "Every setting", note=_note(settings)
    )


def _rows(settings: Settings, by_seed: SeedValues) -> Iterator[TableRow]:
    result, seeds = estimate(by_seed, "ci"), len(settings.statistics.seeds)
    for i, name in enumerate(settings.names):
        cells = [Cell(name)]
        for m, key in enumerate(settings.keys):
            mean, n = float(result.mean[i, m]), int(result.n[i, m])
            if key in COSTS:
                cells.append(Cell(format_value(mean, key)))
                continue
            text, *spread = format_estimate(mean, float(result.spread[i, m]), n, key, seeds).split(" ", 1)
            difference = Difference.of(by_seed[:, i, m] - by_seed[:, 0, m], key)
            small = [*spread, difference.text] if i else spread
            cells.append(Cell(text, "; ".join(filter(None, small)), strong=bool(i) and difference.shown))
        yield TableRow(tuple(cells))


def _note(settings: Settings) -> str:
    """How to read the table."""
    sentences = ["Means over seeds ± half their 95 % interval (Student's t)."]
    if settings.axis:
        sentences.append(
            f"Below: the difference to {called(settings.names[0])}, paired by seed, with its 95 % interval; bold "
            "where that leaves out 0, not decided where it does not, with the seeds that would decide it if the "
            "difference is as found (power 80 %). Each stands by itself: of twenty true zeros, one is expected to look "
            "like a difference."
        )
    sentences += [sentence for sentence in (about_views(settings.statistics), _references(settings)) if sentence]
    return " ".join(sentences)


def _references(settings: Settings) -> str:
    results = settings.statistics.results
    if "references" not in results:
        return ""
    asked = " or ".join(f"{count:g}" for count in sorted(results["references"].fillna(0).unique()))
    return (
        f"Exposure is by the attack chosen beforehand with {asked} reference federations a run, or one that is "
        "certain to find more."
    )


def about_views(statistics: SeedStatistics) -> str:
    """Whose exposure the runs measure; empty where they do not say."""
    views = [*statistics.results["view"].unique()] if "view" in statistics.results else []
    whom = join_words([BY[view] for view in views])
    if len(views) > 1:
        return f"Exposure and limits are about {whom}: between these, differences compare attackers, not settings."
    return f"Exposure and limits are about {whom}." if views else ""
