"""The file of a sweep: a base configuration, the settings that vary, the seeds, and the tables and figures to show.

docs/sweeps.md has an example of every key.
"""

import copy
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import Field

from shoal.config.kinds import require_data
from shoal.config.named_keys import set_keys
from shoal.config.schema import Config, parse_config, require_named_parts, with_data_path
from shoal.config.toml_files import key_parts, parse, parse_change, read_toml, remove_section
from shoal.core.errors import InputError, locate_errors, require
from shoal.core.settings import Count, settings, spell_value
from shoal.reports.sweep.report_spec import Axes, ReportSpec, Value, read_report_spec

RESERVED = ("run", "seed", "key", "mean", "sd", "n")
"""Names that no axis can have, because results.csv and tables have these columns."""

OFF = "none"
"""The value that removes a section."""

SettingChanges = Mapping[str, Any]
"""Values by dotted key."""


@settings
class SweepSection:
    """The keys of a sweep's file."""

    base: str
    seeds: Annotated[list[Count], Field(min_length=1)]
    grid: dict[str, Any]
    title: str = ""
    changes: dict[str, Any] = field(default_factory=dict)
    shown: str | None = None
    """The path of a shared file with further tables, figures and labels."""
    tables: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SweepPoint:
    """One run of a sweep."""

    settings: Mapping[str, Value]
    seed: int
    config: Config

    def __str__(self) -> str:
        """The settings and the seed as text."""
        return ", ".join([*(f"{axis} = {value}" for axis, value in self.settings.items()), f"seed {self.seed}"])


@dataclass(frozen=True)
class Sweep:
    """A sweep of many runs.

    Args:
        title: the question of the sweep.
        axes: the settings that vary, in the order of the file.
        seeds: the seeds of each setting.
        runs: every combination of the axes' settings and the seeds.
        shown: the requested tables and figures.
        base: the table of the base configuration.
        asked: the table of the sweep's file, with the tables and figures of the shared file.
    """

    name: str
    title: str
    axes: Axes
    seeds: tuple[int, ...]
    runs: tuple[SweepPoint, ...]
    shown: ReportSpec
    base: Mapping[str, Any]
    asked: Mapping[str, Any]

    def toml(self, base: str) -> str:
        """Return the text of the sweep's file, with ``base`` as the name of the base configuration's file."""
        return tomli_w.dumps(dict(self.asked) | {"title": self.title, "base": base})


def read_sweep(path: Path, changes: Iterable[str] = (), *, allow_code: bool = True) -> Sweep:
    """Read the sweep in a TOML file.

    Args:
        changes: changes to the base configuration, such as "engine.device=cuda".
        allow_code: whether the file may name code (``module:Name``), which is then imported.

    Raises:
        InputError: the file or its base cannot be read, or requests impossible runs, tables or figures.
    """
    asked = read_toml(path)
    where = str(path)
    section = parse(SweepSection, asked, where)
    base = path.parent / section.base
    table = read_toml(base)
    require_named_parts(table, base, section.changes)
    if not allow_code:
        require_data([table, section.changes, section.grid], base)
    table = with_data_path(table, base.parent)
    with locate_errors("--set"):
        set_keys(table, dict(map(parse_change, changes)))
    require(len(section.grid) > 0, f"{where}: 'grid' is empty; add at least one key with a list of values")
    twice = [seed for seed in section.seeds if section.seeds.count(seed) > 1]
    require(not twice, f"{where}: 'seeds' has {twice[0] if twice else ''} twice")
    axes = {name: _read_axis(name, settings, where) for name, settings in section.grid.items()}
    _check_apart(section.changes, axes, where)
    if section.shown is not None:
        asked = _with_shown(asked, path.parent / section.shown)
    shown = {key: asked[key] for key in ("tables", "figures", "labels") if key in asked}
    values = {name: tuple(settings) for name, settings in axes.items()}
    return Sweep(
        name=path.stem,
        title=section.title or path.stem,
        axes=values,
        seeds=tuple(section.seeds),
        runs=tuple(_runs(section, axes, table, where)),
        shown=read_report_spec(shown, values, where),
        base=table,
        asked=asked,
    )


def _with_shown(asked: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Return the table of the sweep's file, with the tables, figures and labels of the shared file ``path``."""
    shared = read_toml(path)
    strange = [key for key in shared if key not in ("tables", "figures", "labels")]
    require(not strange, f"{path}: unknown key '{strange[0] if strange else ''}'; known: figures, labels, tables")
    merged = {key: value for key, value in asked.items() if key != "shown"}
    for key, names in shared.items():
        require(isinstance(names, dict), f"{path}: '{key}' must be a table (got {names!r})")
        stated = merged.get(key, {})
        twice = [name for name in names if name in stated]
        require(not twice, f"{path}: '{key}.{twice[0] if twice else ''}' is also in the sweep's file; remove one")
        merged[key] = names | stated
    return merged


def _runs(
    section: SweepSection, axes: Mapping[str, Mapping[Value, SettingChanges]], base: Mapping[str, Any], where: str
) -> Iterator[SweepPoint]:
    for combination in itertools.product(*(axis.items() for axis in axes.values())):
        place = {name: setting for name, (setting, _) in zip(axes, combination, strict=True)}
        changes = {key: value for _, setting in combination for key, value in setting.items()}
        words = ", ".join(f"{axis} = {value}" for axis, value in place.items())
        for seed in section.seeds:
            config = _changed(base, section.changes, changes | {"seed": seed}, f"{where} with {words}")
            yield SweepPoint(place, seed, config)


def _read_axis(name: str, asked: object, where: str) -> dict[Value, SettingChanges]:
    """Return the changes of each setting of an axis."""
    hint = "list seeds in 'seeds'" if name == "seed" else "rename the axis, because results.csv has this column"
    taken = name in RESERVED or name.startswith(("larger.", "seconds.", "smaller."))
    require(not taken, f"{where}: 'grid.{name}' cannot be an axis; {hint}")
    if not isinstance(asked, list | dict):
        raise InputError(
            f"{where}: 'grid.{name}' must be a list of values or a table of settings (got {spell_value(asked)})"
        )
    require(len(asked) > 0, f"{where}: 'grid.{name}' is empty; add at least one value")
    if isinstance(asked, dict):
        wrong = [setting for setting, changes in asked.items() if not isinstance(changes, dict)]
        require(
            not wrong,
            f"{where}: 'grid.{name}.{wrong[0] if wrong else ''}' must be a table of keys and values, such as "
            '{"data.clients" = 10}, or {} for no change',
        )
        for text in (name, *asked):
            require(
                bool(text) and not any(ord(letter) < 32 for letter in text),
                f"{where}: 'grid.{name}' needs names without line breaks or control characters (got {text!r})",
            )
        return {setting: changes for setting, changes in asked.items()}  # noqa: C416 (for the type of the keys)
    settings = {}
    for value in asked:
        try:
            setting = value if isinstance(value, Value) else json.dumps(value)
        except TypeError as error:
            raise InputError(f"{where}: 'grid.{name}' has a date or a time; use numbers, texts or booleans") from error
        require(setting not in settings, f"{where}: 'grid.{name}' has {setting} twice")
        settings[setting] = {name: value}
    return settings


def _check_apart(changes: SettingChanges, axes: Mapping[str, Mapping[Value, SettingChanges]], where: str) -> None:
    """Raise if two axes, or an axis and [changes], set the same key, or if a key is in a table that the other sets."""
    owners = {"changes": list(changes)}
    owners |= {
        f"grid.{name}": [key for setting in settings.values() for key in setting] for name, settings in axes.items()
    }
    seen: list[tuple[str, list[str]]] = []
    for owner, keys in owners.items():
        for key in dict.fromkeys(keys):
            parts = key_parts(key)
            require(bool(parts), f"{where}: {key!r} is not a key; write a key such as data.clients")
            require(parts != ["seed"], f"{where}: '{owner}' sets 'seed'; list seeds in 'seeds'")
            for other, other_parts in seen:
                both = min(len(parts), len(other_parts))
                require(
                    other == owner or parts[:both] != other_parts[:both],
                    f"{where}: '{key}' is set by '{owner}' and by '{other}'; remove one of them",
                )
            seen.append((owner, parts))


def _changed(base: Mapping[str, Any], shared: SettingChanges, own: SettingChanges, where: str) -> Config:
    """Return the changed configuration; ``where`` is the prefix of error sentences.

    ``shared`` changes apply to all runs, and count as the base's if the run's ``own`` name a different algorithm.
    """
    table = copy.deepcopy(dict(base))
    for changes in (shared, own):
        with locate_errors(where):
            off = {key for key, value in changes.items() if value == OFF and remove_section(table, key_parts(key))}
            set_keys(table, {key: value for key, value in changes.items() if key not in off})
    _fill_last_share(table, {**shared, **own}, where)
    evaluation = table.setdefault("evaluation", {})
    if isinstance(evaluation, dict):
        # A sweep compares its runs with each other, and each baseline would take as long as a run.
        evaluation.setdefault("baselines", False)
    return parse_config(table, where)


def _fill_last_share(table: Mapping[str, Any], changes: SettingChanges, where: str) -> None:
    """Give the last group with clients the rest of the shares if other groups' shares change."""
    named = [key_parts(key) for key in changes]
    changed = {parts[2] for parts in named if parts[:2] == ["data", "groups"] and parts[3:] == ["share"]}
    # Where shares are changed, these are tables.
    groups = table["data"]["groups"] if changed else {}
    stated = {name: group.get("share") for name, group in groups.items() if isinstance(group, dict)}
    shares = {name: float(share) for name, share in stated.items() if isinstance(share, int | float)}
    last = [name for name, share in shares.items() if share > 0][-1:]
    if not last or last[0] in changed:
        return
    # Rounded, since 1 - 0.1 - 0.2 is not 0.7 in binary, and the written share should be.
    rest = round(1 - sum(share for name, share in shares.items() if name != last[0]), 12)
    require(rest > 0, f"{where}: the shares must leave more than 0 for the group '{last[0]}' (got {rest:g})")
    groups[last[0]]["share"] = rest
