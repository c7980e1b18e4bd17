"""What a figure owes to seeds that are missing: n above a mark, a label in a gap, a sentence below."""

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes as Panel

from shoal.reports.frames import Floats
from shoal.reports.sweep.figure_data import Scene
from shoal.reports.sweep.looks import HEIGHT, LETTER, SMALL
from shoal.reports.sweep.marks import Mark

_INSIDE = 0.7 * HEIGHT
"""Inches of a panel's height between its axes, about."""

_BACK = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5}
"""What lines behind small text fade to."""


@dataclass(frozen=True)
class Spot:
    """Where a mark stands: at ``x``, reaching from ``low`` to ``high``; its n is above, or ``below`` it."""

    x: float
    low: float
    high: float
    n: int
    below: bool = False


def gap(scene: Scene, mark: Mark) -> str:
    """Why nothing stands at a place.

    No run is finished there, or not all that it averages over, or they have no such figure.
    """
    if mark.runs == 0:
        return "no run"
    return "incomplete" if scene.asked.average else "no value"


def finish(panel: Panel, scene: Scene, spots: Sequence[Spot], place: float) -> None:
    """Set the limits of y, and write n above each spot with fewer than all seeds; spots are ``place`` inches apart."""
    few = [spot for spot in spots if 0 < spot.n < len(scene.seeds)]
    upright = place < 5 * LETTER
    need = (0.5 if upright else 0.22) / _INSIDE
    low, high = scene.asked.y_range or panel.get_ylim()
    if not scene.asked.y_range:
        high = max([high, *(low + (spot.high - low) / (1 - need) for spot in few if not spot.below)])
        low = min([low, *(high - (high - spot.low) / (1 - need) for spot in few if spot.below)])
    panel.set_ylim(low, high)
    room = need * (high - low)
    for spot in few:
        # Limits that the file sets may leave no room above, or cut off the mark itself.
        below = spot.below or (scene.asked.y_range is not None and high - spot.high < room)
        y = min(max(spot.low, low + room), high) if below else max(spot.high, low)
        panel.annotate(
            f"n = {spot.n}", (spot.x, y), (0, -4 if below else 4),
            textcoords="offset points", ha="center", va="top" if below else "bottom", fontsize=SMALL,
            rotation=90 if upright else 0, annotation_clip=False, bbox=_BACK,
        )  # fmt: skip


def write_gap(panel: Panel, x: float, text: str, *, top: bool = False) -> None:
    """A label where a mark is missing, at the bottom or the top of the panel."""
    panel.text(
        x, 0.97 if top else 0.03, text, transform=panel.get_xaxis_transform(), rotation=90, ha="center",
        va="top" if top else "bottom", fontsize=SMALL, color="#555555", bbox=_BACK,
    )  # fmt: skip


def sentences(scene: Scene, counts: Sequence[int], values: Floats) -> list[str]:
    """What is averaged, held, missing and cut off, for the caption.

    ``counts`` are how many seeds the marks rest on, ``values`` the numbers that the figure shows.
    """
    asked = scene.asked
    told = scene.words.selection(asked, scene.outcomes.axes)
    if any(0 < count < len(scene.seeds) for count in counts):
        told.append(
            "Where n is given, only so many seeds are behind a mark; the other runs are not finished or have no such "
            "value."
        )
    if 0 in counts:
        told.append("A labelled gap is a place without a value of any seed.")
    if asked.y_range:
        low, high = asked.y_range
        lost = int(((values < low) | (values > high)).sum())
        if lost:
            told.append(f"Outside the axis and not shown: {lost} of {len(values)} values.")
    return told


def seeds_of(scene: Scene) -> str:
    """How many seeds, in words."""
    return f"{len(scene.seeds)} seed{'' if len(scene.seeds) == 1 else 's'}"
