"""The [tables], [figures] and [labels] of a sweep's file, checked against the sweep's axes.

Every axis with more than one setting must be displayed, held at one setting (`where`) or averaged over (`average`) in
each table and figure; otherwise runs of different settings would be mixed silently.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from math import isfinite
from typing import Annotated, Any, Literal

from pydantic import Field

from shoal.config.toml_files import parse
from shoal.core.errors import InputError, require, suggest
from shoal.core.settings import Range, settings

Value = str | int | float | bool
"""A setting of an axis, as in results.csv."""

Axes = Mapping[str, Sequence[Value]]
"""The settings of each axis, in the order of the sweep's file."""

Spread = Literal["sd", "ci"]
"""Over seeds: the standard deviation, or half the 95 % confidence interval of the mean (Student's t)."""


@settings
class Selection:
    """The keys that tables and figures share.

    `y` names columns of results.csv; for courses, columns of rounds.csv.
    """

    y: Annotated[list[str], Field(min_length=1)]
    title: str = ""
    caption: str = ""
    where: dict[str, Value] = field(default_factory=dict)
    average: list[str] = field(default_factory=list)
    spread: Spread = "sd"


@settings
class TableSpec(Selection):
    """[tables.NAME]: a cell is a mean and its spread over seeds. The metrics of `y` stand inside the axes."""

    rows: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    y_in: Literal["rows", "columns"] = "rows"
    best: Literal["highest", "lowest"] | None = None
    """Which mean is bold, among those that differ by the columns' axes only."""

    @property
    def displayed(self) -> tuple[str, ...]:
        """The axes of its rows and columns."""
        return (*self.rows, *self.columns)


@settings
class FigureSpec(Selection):
    """[figures.NAME]: one panel per metric over the axis `x`; courses: one panel per metric and setting of `by`."""

    kind: Literal["boxes", "bars", "lines", "courses"] = field(kw_only=True)
    x: str | None = None
    by: str | None = None
    y_label: str = ""
    """The name of all panels' y axes, which then have one scale."""
    y_range: Range | None = None
    level: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A dotted line for comparison, such as 0.5 for chance."""

    @property
    def displayed(self) -> tuple[str, ...]:
        """Its axes, `by` before `x`."""
        return tuple(axis for axis in (self.by, self.x) if axis is not None)


Displayed = TableSpec | FigureSpec


@settings
class ReportSpec:
    """[tables], [figures] and [labels] together. Labels name axes, their settings, groups, and metrics."""

    tables: dict[str, TableSpec] = field(default_factory=dict)
    figures: dict[str, FigureSpec] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def read_report_spec(document: Mapping[str, Any], axes: Axes, where: str) -> ReportSpec:
    """The checked tables and figures of a sweep's file, which ``where`` names in error sentences.

    Raises:
        InputError: an unknown axis or setting, or an axis that is neither displayed, held nor averaged over.
    """
    spec = parse(ReportSpec, document, where)
    for kind, specs in (("tables", spec.tables), ("figures", spec.figures)):
        for name, displayed in specs.items():
            require(
                bool(name) and all(letter.isalnum() or letter in "-_." for letter in name) and name[0] != ".",
                f"{where}: '{kind}.{name}' becomes a file's name, so it must be letters, digits, '-', '_' and '.'",
            )
            require(len(name.encode()) <= 200, f"{where}: '{kind}.{name}' is too long for a file's name")
            with said_of(f"{where}: '{kind}.{name}'"):
                if isinstance(displayed, FigureSpec):
                    _check_figure(displayed)
                _check_axes(displayed, axes)
    return spec


@contextmanager
def said_of(subject: str) -> Iterator[None]:
    """Begin the sentence of an `InputError` with ``subject``."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{subject}: {error}") from error


def _check_figure(spec: FigureSpec) -> None:
    if spec.kind == "courses":
        require(spec.x is None, "courses run over rounds, so 'x' must be left out")
    else:
        require(spec.x is not None, f"'x' is missing: the axis that the {spec.kind} stand over")
    low, high = spec.y_range or (0, 1)
    require(isfinite(low) and isfinite(high) and low < high, f"'y_range' must be [low, high]; got [{low}, {high}]")


def _check_axes(spec: Displayed, axes: Axes) -> None:
    used = [*spec.displayed, *spec.where, *spec.average]
    for axis in used:
        hint = suggest(axis, axes) if axes else "it varies nothing"
        require(axis in axes, f"the sweep does not vary '{axis}'; {hint}")
        require(used.count(axis) == 1, f"'{axis}' is named twice; show it, hold it by 'where', or 'average' over it")
    for axis, value in spec.where.items():
        same = any(setting == value and isinstance(setting, bool) == isinstance(value, bool) for setting in axes[axis])
        settings = ", ".join(map(str, axes[axis]))
        require(same, f"'where' holds '{axis}' at {value!r}, but the sweep has it at {settings}")
    for key in spec.y:
        require(spec.y.count(key) == 1, f"'y' has '{key}' twice")
    for axis in axes:
        require(
            axis in used or len(axes[axis]) == 1,
            f"the sweep also varies '{axis}'; show it, hold it by 'where', or 'average' over it",
        )
