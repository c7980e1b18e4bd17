"""A sweep's figures: what is asked for, drawn for the page and for print."""

from collections.abc import Callable, Sequence

import pandas as pd

from shoal.experiments.svg import forms
from shoal.experiments.sweeps.charts import chart_plate
from shoal.experiments.sweeps.courses import courses_plate
from shoal.experiments.sweeps.picture import Picture
from shoal.experiments.sweeps.scene import Scene, need_keys
from shoal.experiments.sweeps.shown import Axes, FigureSection
from shoal.experiments.sweeps.words import Words


def draw(
    name: str,
    asked: FigureSection,
    results: pd.DataFrame,
    *,
    axes: Axes,
    seeds: Sequence[int],
    words: Words,
    courses: Callable[[str], pd.DataFrame],
) -> Picture:
    """The figure that ``asked`` describes; the same input gives the same bytes.

    Args:
        name: of its files, and unique in the page.
        asked: the figure; its axes and settings must be among ``axes``.
        results: a row a finished run: its name (`run`), settings, `seed` and figures. Runs without a row are marked.
        axes: what the sweep varies.
        seeds: all that the sweep asks for.
        words: names of axes, settings and keys.
        courses: the table rounds.csv of a run, by its name.

    Raises:
        InputError: no run has one of the figures that ``asked`` names.
    """
    scene = Scene(asked, results, axes, seeds, words)
    if asked.kind == "courses":
        plate = courses_plate(scene, courses)
    else:
        if len(results):
            need_keys(asked.y, [results], ("run", "seed", *axes))
        plate = chart_plate(scene)
    title = asked.title or name
    drawn = forms(name, f"{title}. {plate.alt}", plate.paint, plate.size)
    caption = " ".join([*([asked.caption] if asked.caption else []), *plate.notes])
    return Picture(name, title, caption, drawn.svg, drawn.pdf, drawn.inline)
