"""A sweep's tables as values: each cell a figure's mean and spread over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from shoal.reports.sweep.labels import SPREADS, Words
from shoal.reports.sweep.number_format import number, text
from shoal.reports.sweep.seed_statistics import Estimate, Outcomes, estimate
from shoal.reports.sweep.spec import Axes, Spread, TableSection, Value

Settings = Mapping[str, Value]


@dataclass(frozen=True)
class Cell:
    """A figure at some settings.

    Args:
        settings: of the axes that the table shows or holds.
        key: of the figure.
        found: its mean and spread over seeds.
        text: the same as people read it.
        best: whether it is the best of those that differ by the columns' axes only.
    """

    settings: Settings
    key: str
    found: Estimate
    text: str
    best: bool = False


@dataclass(frozen=True)
class Line:
    """What a line is about, a part for each of the table's stubs, and its cells."""

    heads: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class SweepTable:
    """Cells in lines, under heads.

    Args:
        name: of its files.
        title: what it shows.
        caption: what the file says about it.
        note: how to read it: what the cells are.
        spread: of the cells.
        stubs: heads of the columns on the left, which say what a line is about.
        over: names of the axes that the columns stand for, above their heads; empty where the heads speak for
            themselves.
        heads: heads of the columns of cells.
        lines: in the order of the axes' settings.
    """

    name: str
    title: str
    caption: str
    note: str
    spread: Spread
    stubs: tuple[str, ...]
    over: str
    heads: tuple[str, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class _Part:
    """A row or a column: the settings of its axes, its keys, and what it is called."""

    settings: Settings
    key: str | None
    heads: tuple[str, ...]


def sweep_table(name: str, asked: TableSection, outcomes: Outcomes, words: Words) -> SweepTable:
    """The table that ``asked`` describes.

    Args:
        name: of the table.
        asked: what the sweep's file says; it fits the sweep's axes (`shown.read_shown`).
        outcomes: the runs; a cell over fewer than all seeds says so.
        words: what axes, settings and figures are called.

    Raises:
        InputError: no run has one of the figures that ``asked`` names.
    """
    outcomes.need(asked.y)
    axes, seeds = outcomes.axes, outcomes.seeds
    one = asked.y[0] if len(asked.y) == 1 else None
    lines = _parts(asked.rows, asked.y if one is None and asked.y_in == "rows" else [None], axes, words)
    columns = _parts(asked.columns, asked.y if one is None and asked.y_in == "columns" else [None], axes, words)

    def cell(line: _Part, column: _Part) -> Cell:
        key = line.key or column.key or asked.y[0]
        settings = dict(line.settings) | dict(column.settings) | asked.where
        found = estimate(outcomes.by_seed(key, settings), asked.spread)
        return Cell(settings, key, found, text(found, key, len(seeds)))

    stubs = [words.axis(axis) for axis in asked.rows]
    if one is None and asked.y_in == "rows":
        stubs.append("figure")
    return SweepTable(
        name=name,
        title=asked.title or _begin("; ".join(map(words.key, asked.y))),
        caption=asked.caption,
        note=_note(asked, axes, seeds, words),
        spread=asked.spread,
        stubs=tuple(stubs),
        over=_over(asked.columns, axes, words),
        heads=tuple(_head(asked, column, words) for column in columns),
        lines=tuple(Line(line.heads, _mark([cell(line, column) for column in columns], asked.best)) for line in lines),
    )


def _parts(shown: Sequence[str], keys: Sequence[str | None], axes: Axes, words: Words) -> list[_Part]:
    """Every setting of the ``shown`` axes, the last varying fastest, and inside them the keys."""
    parts = []
    for each in product(*(axes[axis] for axis in shown)):
        settings = dict(zip(shown, each, strict=True))
        parts += [
            _Part(settings, key, (*map(words.setting, each), *([] if key is None else [words.key(key)])))
            for key in keys
        ]
    return parts


def _over(columns: Sequence[str], axes: Axes, words: Words) -> str:
    """What the heads are settings of; numbers do not say it themselves."""
    clear = all(isinstance(value, str) for axis in columns for value in axes[axis])
    return "" if clear else ", ".join(map(words.axis, columns))


def _head(asked: TableSection, column: _Part, words: Words) -> str:
    """A column's head in one line."""
    told = ", ".join(map(words.setting, column.settings.values()))
    if column.key is None:
        return told or (words.key(asked.y[0]) if len(asked.y) == 1 else "value")
    return ": ".join(part for part in (told, words.key(column.key)) if part)


def _mark(cells: Sequence[Cell], best: str | None) -> tuple[Cell, ...]:
    """A line's ``cells``, the best of each key marked where there is another; those that read the same are all best."""
    if best is None:
        return tuple(cells)
    wanted: dict[str, str] = {}
    for key in dict.fromkeys(cell.key for cell in cells):
        means = [cell.found.mean for cell in cells if cell.key == key and cell.found.n > 0]
        if len(means) > 1:
            wanted[key] = number(max(means) if best == "highest" else min(means), key)
    return tuple(
        replace(cell, best=cell.found.n > 0 and wanted.get(cell.key) == number(cell.found.mean, cell.key))
        for cell in cells
    )


def _note(asked: TableSection, axes: Axes, seeds: Sequence[int], words: Words) -> str:
    """What the cells are, in sentences."""
    one = f"{words.key(asked.y[0])}: " if len(asked.y) == 1 and asked.title and asked.columns else ""
    if len(seeds) == 1:
        told = [f"{one}one seed."]
    else:
        told = [f"{one}mean ± {SPREADS[asked.spread]} over {len(seeds)} seeds, or over n where that is given."]
    told += words.selection(asked, axes)
    if asked.best and asked.columns:
        told.append(
            f"Bold: the {asked.best} of those that differ by {' and '.join(map(words.axis, asked.columns))} only."
        )
    return _begin(" ".join(told))


def _begin(sentence: str) -> str:
    """``sentence`` with its first letter in upper case."""
    return sentence[:1].upper() + sentence[1:]
