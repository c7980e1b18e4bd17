"""A sweep's figures: what is asked for, drawn for the page and for print."""

from collections.abc import Callable

import pandas as pd

from shoal.reports.plotting import figure_files
from shoal.reports.sweep.charts import chart_plate
from shoal.reports.sweep.figure_data import Scene
from shoal.reports.sweep.labels import Words
from shoal.reports.sweep.picture import Picture
from shoal.reports.sweep.round_curves import courses_plate
from shoal.reports.sweep.seed_statistics import Outcomes
from shoal.reports.sweep.spec import FigureSection


def draw(
    name: str,
    asked: FigureSection,
    outcomes: Outcomes,
    words: Words,
    courses: Callable[[str], pd.DataFrame],
) -> Picture:
    """The figure that ``asked`` describes; the same input gives the same bytes.

    Args:
        name: of its files, and unique in the page.
        asked: the figure; it fits the sweep's axes (`shown.read_shown`).
        outcomes: the runs; those that are missing are marked.
        words: names of axes, settings and keys.
        courses: the table rounds.csv of a run, by its name.

    Raises:
        InputError: no run has one of the figures that ``asked`` names.
    """
    scene = Scene(asked, outcomes, words)
    if asked.kind == "courses":
        plate = courses_plate(scene, courses)
    else:
        outcomes.need(asked.y)
        plate = chart_plate(scene)
    title = asked.title or name
    drawn = figure_files(f"{title}. {plate.alt}", plate.paint, plate.size)
    caption = " ".join([*([asked.caption] if asked.caption else []), *plate.notes])
    return Picture(name, title, caption, drawn.svg, drawn.pdf, drawn.image)
