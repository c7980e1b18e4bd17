"""A sweep's page: what was run, what is missing, the tables and the figures, and a way to each run's own report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan

import pandas as pd

from shoal.reports.frames import column
from shoal.reports.html import render
from shoal.reports.run.tables import DASH
from shoal.reports.sweep.labels import Words
from shoal.reports.sweep.number_format import digits, number
from shoal.reports.sweep.picture import Picture
from shoal.reports.sweep.spec import Axes, Value
from shoal.reports.sweep.tables import SweepTable

Missing = Sequence[tuple[Mapping[str, Value], str]]
"""Runs that are not finished: the axes' settings and the seed, and why."""


@dataclass(frozen=True)
class _Run:
    """A finished run as a row of the page."""

    name: str
    settings: tuple[str, ...]
    figures: tuple[str, ...]


def sweep_page(
    title: str,
    *,
    axes: Axes,
    seeds: Sequence[int],
    results: pd.DataFrame,
    missing: Missing,
    source: str,
    words: Words,
    tables: Sequence[SweepTable],
    pictures: Sequence[Picture],
    keys: Sequence[str],
) -> str:
    """The page, in HTML. Its links lead to files beside it: ``tables/``, ``figures/``, ``runs/``, results.csv.

    Args:
        title: of the page.
        axes: what the sweep varies.
        seeds: of the sweep.
        results: a row a finished run: ``run``, ``seed``, a column an axis and a column a figure.
        missing: the runs that ``results`` lacks.
        source: the text of the sweep's file.
        words: what axes, settings and figures are called.
        tables: in the order of the page.
        pictures: in the order of the page.
        keys: figures to show of each run.
    """
    named = (*axes, "seed")
    page = {
        "title": title or "Sweep",
        "told": _told(axes, seeds, len(results), len(missing), words),
        "missing": [
            (tuple(words.setting(each[axis]) if axis in each else DASH for axis in named), reason)
            for each, reason in missing
        ],
        "axes": [words.axis(axis) for axis in axes],
        "tables": tables,
        "pictures": pictures,
        "keys": [words.key(key) for key in keys],
        "runs": _runs(results, named, keys, words),
        "source": source,
    }
    return render("sweep.html.j2", page)


def _told(axes: Axes, seeds: Sequence[int], finished: int, missing: int, words: Words) -> str:
    """What was run, in a line."""
    varied = [f"{words.axis(axis)} ({', '.join(map(words.setting, axes[axis]))})" for axis in axes]
    one = f"seed {seeds[0]}" if len(seeds) == 1 else f"{len(seeds)} seeds ({', '.join(map(str, seeds))})"
    told = f"{' by '.join(varied)}, with {one}" if varied else one
    runs = finished + missing
    if missing:
        done = f"{finished} of {runs} runs {'is' if finished == 1 else 'are'} finished"
    else:
        done = "The one run is finished" if runs == 1 else f"All {runs} runs are finished"
    return f"{told[:1].upper()}{told[1:]}. {done}."


def _runs(results: pd.DataFrame, named: Sequence[str], keys: Sequence[str], words: Words) -> list[_Run]:
    if results.empty:
        return []
    settings = zip(*(map(words.setting, results[name].tolist()) for name in named), strict=True)
    figures = zip(*(map(str, _shown(results, key)) for key in keys), strict=True) if keys else [()] * len(results)
    return [_Run(*each) for each in zip(results["run"].astype(str), settings, figures, strict=True)]


def _shown(results: pd.DataFrame, key: str) -> list[str]:
    """A figure of each run; a count is whole here, as it is no mean."""
    values = column(results, key).tolist()
    whole = digits(key) == 1 and all(value.is_integer() for value in values if not isnan(value))
    return [DASH if isnan(value) else f"{value:,.0f}" if whole else number(value, key) for value in values]
