"""A sweep's file: a base, what varies, the seeds, and what is shown of the outcome; from there to its runs.

docs/sweeps.md has an example of every key.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field

from shoal.config.schema import Config
from shoal.config.toml_files import change, parse, read_toml
from shoal.core.errors import require
from shoal.core.settings import Count, settings
from shoal.reports.sweep.report_spec import Axes, ReportSpec, Value, read_report_spec
from shoal.sweeps.grid import Changes, changed, check_apart, read_axis


@settings
class SweepSection:
    """The whole file."""

    base: str
    seeds: Annotated[list[Count], Field(min_length=1)]
    grid: dict[str, Any]
    title: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    shown: str | None = None
    """A file beside this one with further tables, figures and labels, which several sweeps may share."""
    tables: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One run of a sweep.

    Args:
        settings: its place on each axis.
        seed: its seed.
        config: what it runs.
    """

    settings: Mapping[str, Value]
    seed: int
    config: Config

    def __str__(self) -> str:
        """As people call it."""
        return ", ".join([*(f"{axis} = {value}" for axis, value in self.settings.items()), f"seed {self.seed}"])


@dataclass(frozen=True)
class Sweep:
    """Many runs.

    Args:
        name: of its file.
        title: what it asks.
        axes: what varies, in the order of the file.
        seeds: of each setting.
        runs: the product of both.
        shown: the tables and figures it asks for.
        base: the table that all runs change.
        asked: the file's own table, with what it takes over from another file to show.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import tomli_w
        >>> from shoal.sweeps import read_sweep
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 20}
        >>> base = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 1}}
        >>> asked = {"base": "base.toml", "seeds": [0, 1], "grid": {"algorithm.name": ["fedavg", "ifca"]}}
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "base.toml").write_text(tomli_w.dumps(base))
        ...     _ = Path(folder, "two.toml").write_text(tomli_w.dumps(asked))
        ...     sweep = read_sweep(Path(folder, "two.toml"))
        ...
        >>> sweep.name, [(run.config.algorithm.name, run.seed) for run in sweep.runs]
        ('two', [('fedavg', 0), ('fedavg', 1), ('ifca', 0), ('ifca', 1)])
    """

    name: str
    title: str
    axes: Axes
    seeds: tuple[int, ...]
    runs: tuple[Run, ...]
    shown: ReportSpec
    base: Mapping[str, Any]
    asked: Mapping[str, Any]

    def toml(self, base: str) -> str:
        """The file again, for a directory where ``base`` is the name of the base."""
        return tomli_w.dumps(dict(self.asked) | {"title": self.title, "base": base})


def read_sweep(path: Path, changes: Iterable[str] = ()) -> Sweep:
    """The sweep in a TOML file, with ``changes`` such as "engine.device=cuda" made to its base.

    Raises:
        InputError: the file or its base cannot be read, or asks for runs, tables or figures that cannot be.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import tomli_w
        >>> from shoal.sweeps import read_sweep
        >>> data = {"source": "digits", "clients": 4, "examples_per_client": 10, "test_examples": 20}
        >>> base = {"data": data, "model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 1}}
        >>> grid = {"local.learning_rate": [0.1, 0.5], "local.epochs": [1, 2, 5]}
        >>> asked = {"base": "base.toml", "seeds": [0, 1], "grid": grid}
        >>> with TemporaryDirectory() as folder:
        ...     _ = Path(folder, "base.toml").write_text(tomli_w.dumps(base))
        ...     _ = Path(folder, "rates.toml").write_text(tomli_w.dumps(asked))
        ...     sweep = read_sweep(Path(folder, "rates.toml"))
        ...
        >>> len(sweep.runs), sweep.runs[0].config.local.learning_rate
        (12, 0.1)
    """
    given = read_toml(path)
    where = str(path)
    section = parse(SweepSection, given, where)
    base = path.parent / section.base
    table = read_toml(base)
    for each in changes:
        change(table, each)
    require(len(section.grid) > 0, f"{where}: 'grid' is empty; name at least one key and its values")
    twice = [seed for seed in section.seeds if section.seeds.count(seed) > 1]
    require(not twice, f"{where}: 'seeds' has {twice[0] if twice else ''} twice")
    axes = {name: read_axis(name, asked, where) for name, asked in section.grid.items()}
    check_apart(section.changes, axes, where)
    if section.shown is not None:
        given = _with_shown(given, path.parent / section.shown)
    shown = {key: given[key] for key in ("tables", "figures", "labels") if key in given}
    values = {name: tuple(settings) for name, settings in axes.items()}
    return Sweep(
        name=path.stem,
        title=section.title or path.stem,
        axes=values,
        seeds=tuple(section.seeds),
        runs=tuple(_runs(section, axes, table, where)),
        shown=read_report_spec(shown, values, where),
        base=table,
        asked=given,
    )


def _with_shown(given: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The sweep's file with what ``path`` shows in it, as if it were written there."""
    shared = read_toml(path)
    strange = [key for key in shared if key not in ("tables", "figures", "labels")]
    require(not strange, f"{path}: unknown key '{strange[0] if strange else ''}'; known: figures, labels, tables")
    whole = {key: value for key, value in given.items() if key != "shown"}
    for key, names in shared.items():
        require(isinstance(names, dict), f"{path}: '{key}' must be a table; got {names!r}")
        own = whole.get(key, {})
        twice = [name for name in names if name in own]
        require(not twice, f"{path}: '{key}.{twice[0] if twice else ''}' is in the sweep's own file too")
        whole[key] = names | own
    return whole


def _runs(
    section: SweepSection, axes: Mapping[str, Mapping[Value, Changes]], base: Mapping[str, Any], where: str
) -> Iterator[Run]:
    for combination in itertools.product(*(axis.items() for axis in axes.values())):
        place = {name: setting for name, (setting, _) in zip(axes, combination, strict=True)}
        changes = dict(section.changes)
        for _, each in combination:
            changes |= each
        words = ", ".join(f"{axis} = {value}" for axis, value in place.items())
        for seed in section.seeds:
            config = changed(base, changes | {"seed": seed}, f"{where} with {words}")
            yield Run(place, seed, config)
