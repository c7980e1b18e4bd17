"""What a sweep's file may say about tables and figures, checked against what the sweep varies.

Every axis of a sweep must be spoken for in each table and figure: shown, held at one value (`where`), or averaged over
(`average`); else figures of different settings would be mixed without a word.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import Field

from shoal.config.validation import parse
from shoal.core.errors import InputError, nearest, require
from shoal.core.settings import Range, settings

Value = str | int | float | bool
"""One setting of an axis, as results.csv has it."""

Axes = Mapping[str, Sequence[Value]]
"""What a sweep varies: the axes' names and their settings, in the order of the file."""

Spread = Literal["sd", "ci"]
"""Of seeds: the standard deviation, or the 95 % confidence interval of the mean by Student's t."""

Keys = Annotated[list[str], Field(min_length=1)]


@settings
class Selection:
    """What tables and figures have in common.

    `y` are keys of results.csv; for courses, columns of rounds.csv.
    """

    y: Keys
    title: str = ""
    caption: str = ""
    where: dict[str, Value] = field(default_factory=dict)
    average: list[str] = field(default_factory=list)
    spread: Spread = "sd"


@settings
class TableSection(Selection):
    """[tables.NAME]: a cell is mean and spread over seeds. The keys of `y` are rows or columns, inside the axes."""

    rows: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    y_in: Literal["rows", "columns"] = "rows"
    best: Literal["highest", "lowest"] | None = None
    """Which mean is set in bold among those that differ by the columns' axes only."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The axes that it shows."""
        return (*self.rows, *self.columns)


@settings
class FigureSection(Selection):
    """[figures.NAME]: boxes, bars or lines over an axis, a panel for each key of `y`, or courses over rounds.

    In courses the lines are models, ordered by how many clients chose them at the end, and a panel is a key of `y`
    and a setting of `by`.
    """

    kind: Literal["boxes", "bars", "lines", "courses"] = field(kw_only=True)
    x: str | None = None
    by: str | None = None
    y_label: str = ""
    """One name for the axes of all panels, which then have one scale."""
    y_range: Range | None = None
    level: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A dotted line for comparison, such as a coin's 0.5."""

    @property
    def shown(self) -> tuple[str, ...]:
        """The axes that it shows."""
        return tuple(axis for axis in (self.x, self.by) if axis is not None)


@settings
class ShownSection:
    """[tables], [figures] and [labels] together. Labels are words for axes, their settings, and keys."""

    tables: dict[str, TableSection] = field(default_factory=dict)
    figures: dict[str, FigureSection] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Shown:
    """Tables and figures that fit a sweep's axes."""

    tables: Mapping[str, TableSection]
    figures: Mapping[str, FigureSection]
    labels: Mapping[str, str]


def read_shown(given: Mapping[str, Any], axes: Axes, where: str) -> Shown:
    """The tables and figures that a sweep's file asks for; ``where`` names the file in error sentences.

    Raises:
        InputError: an axis or setting that the sweep does not have, or an axis that is not spoken for.
    """
    section = parse(ShownSection, given, where)
    for kind, wanted in (("tables", section.tables), ("figures", section.figures)):
        for name, each in wanted.items():
            require(
                bool(name) and all(letter.isalnum() or letter in "-_." for letter in name) and name[0] != ".",
                f"{where}: '{kind}.{name}' becomes a file's name, so it must be letters, digits, '-', '_' and '.'",
            )
            require(len(name.encode()) <= 200, f"{where}: '{kind}.{name}' is too long for a file's name")
            try:
                _fit(each, axes)
            except InputError as error:
                raise InputError(f"{where}: '{kind}.{name}': {error}") from error
    return Shown(section.tables, section.figures, section.labels)


def _fit(asked: TableSection | FigureSection, axes: Axes) -> None:
    if isinstance(asked, FigureSection):
        if asked.kind == "courses":
            require(asked.x is None, "courses run over rounds, so 'x' must be left out")
        else:
            require(asked.x is not None, f"'x' is missing: the axis that the {asked.kind} stand over")
        low, high = asked.y_range or (0, 1)
        require(isfinite(low) and isfinite(high) and low < high, f"'y_range' must be [low, high]; got [{low}, {high}]")
    spoken = [*asked.shown, *asked.where, *asked.average]
    for axis in spoken:
        require(axis in axes, f"the sweep does not vary '{axis}'; {_known(axis, axes)}")
        require(spoken.count(axis) == 1, f"'{axis}' is named twice; show it, hold it by 'where', or 'average' over it")
    for axis, value in asked.where.items():
        settings = ", ".join(map(str, axes[axis]))
        same = [each for each in axes[axis] if each == value and isinstance(each, bool) == isinstance(value, bool)]
        require(bool(same), f"'where' holds '{axis}' at {value!r}, but the sweep has it at {settings}")
    twice = [key for key in asked.y if asked.y.count(key) > 1]
    require(not twice, f"'y' has '{twice[0] if twice else ''}' twice")
    left = [axis for axis in axes if axis not in spoken and len(axes[axis]) > 1]
    require(
        not left,
        f"the sweep also varies '{left[0] if left else ''}'; show it, hold it by 'where', or 'average' over it",
    )


def _known(axis: str, axes: Iterable[str]) -> str:
    return nearest(axis, axes) if axes else "it varies nothing"
