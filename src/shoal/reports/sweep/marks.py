"""The values behind boxes, bars and lines: a mark at each setting, in groups and panels."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from shoal.reports.frames import Floats
from shoal.reports.sweep.figure_data import Scene
from shoal.reports.sweep.looks import ACROSS, MARGIN, PANEL
from shoal.reports.sweep.seed_statistics import Estimate, estimate
from shoal.reports.sweep.spec import Value

GROUP = 0.84
"""How much of a category's place its boxes or bars take."""

_SLOT = 0.19
"""Inches that a box or a bar takes at least."""


@dataclass(frozen=True)
class Mark:
    """What stands at one place of a chart.

    Args:
        values: (n,) a figure, one a seed that has it, in the order of the seeds.
        found: their mean and spread.
        runs: how many runs are finished here.
    """

    values: Floats
    found: Estimate
    runs: int

    @property
    def n(self) -> int:
        """How many seeds it rests on."""
        return self.found.n


def mark_at(scene: Scene, key: str, x: Value | None, by: Value | None) -> Mark:
    """The figure ``key`` at a place of a chart."""
    outcomes, place = scene.outcomes, scene.place(x, by)
    values = outcomes.by_seed(key, place)
    runs = sum(row is not None for rows in outcomes.rows(place) for row in rows)
    return Mark(values[~np.isnan(values)], estimate(values, scene.asked.spread), runs)


@dataclass(frozen=True)
class Chart:
    """Marks over an axis.

    Args:
        scene: what is asked for.
        panels: (keys, settings of `by`, settings of `x`) the marks.
        width: of a panel, in inches.
    """

    scene: Scene
    panels: Sequence[Sequence[Sequence[Mark]]]
    width: float

    @property
    def x_names(self) -> list[str]:
        """The settings of `x` in words."""
        asked = self.scene.asked
        return [self.scene.words.setting(each) for each in self.scene.settings(asked.x) if each is not None]

    @property
    def by_names(self) -> list[str]:
        """The settings of `by` in words; one empty name without `by`."""
        settings = self.scene.settings(self.scene.asked.by)
        return ["" if each is None else self.scene.words.setting(each) for each in settings]

    @property
    def place(self) -> float:
        """Inches between neighbouring boxes or bars."""
        return self.step * GROUP / len(self.by_names)

    @property
    def step(self) -> float:
        """Inches between neighbouring settings of `x`."""
        return (self.width - MARGIN) / len(self.x_names)

    @property
    def marks(self) -> list[Mark]:
        """All of them."""
        return [mark for panel in self.panels for series in panel for mark in series]


def chart(scene: Scene) -> Chart:
    """The marks that ``scene`` asks for."""
    xs, bys = scene.settings(scene.asked.x), scene.settings(scene.asked.by)
    panels = [[[mark_at(scene, key, x, by) for x in xs] for by in bys] for key in scene.asked.y]
    slots = 0 if scene.asked.kind == "lines" else len(xs) * len(bys) * _SLOT / GROUP
    return Chart(scene, panels, min(max(PANEL, MARGIN + slots), ACROSS * PANEL))
