"""A sweep's grid: what each setting of an axis changes, and the configuration that comes of it."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from shoal.config.schema import Config, parse_config
from shoal.config.toml_files import change_key, key_parts
from shoal.core.errors import InputError, require
from shoal.core.settings import spelled
from shoal.reports.sweep.report_spec import Value

RESERVED = ("run", "seed", "key", "mean", "sd", "ci", "n")
"""Columns of results.csv and of tables that no axis can have for a name."""

Changes = Mapping[str, Any]
"""Values by dotted key."""


def read_axis(name: str, asked: object, where: str) -> dict[Value, Changes]:
    """The changes that each setting of an axis makes."""
    hint = "list seeds in 'seeds'" if name == "seed" else "results have a column of that name; give it another"
    taken = name in RESERVED or name.startswith(("larger.", "seconds.", "smaller."))
    require(not taken, f"{where}: 'grid.{name}' cannot be an axis; {hint}")
    if not isinstance(asked, list | dict):
        raise InputError(
            f"{where}: 'grid.{name}' must be a list of values, or a table of settings; got {spelled(asked)}"
        )
    require(len(asked) > 0, f"{where}: 'grid.{name}' is empty; give it at least one value")
    if isinstance(asked, dict):
        wrong = [setting for setting, changes in asked.items() if not isinstance(changes, dict) or not changes]
        require(
            not wrong,
            f"{where}: 'grid.{name}.{wrong[0] if wrong else ''}' must be a table of keys and values; "
            'a dotted key stands in quotes, as in "data.clients" = [10, 20]',
        )
        for text in (name, *asked):
            require(
                bool(text) and not any(ord(letter) < 32 for letter in text),
                f"{where}: {text!r} in 'grid.{name}' is no name; give it some letters, all on one line",
            )
        return {setting: changes for setting, changes in asked.items()}  # noqa: C416 (for the type of the keys)
    settings = {}
    for value in asked:
        try:
            setting = value if isinstance(value, Value) else json.dumps(value)
        except TypeError as error:
            raise InputError(f"{where}: 'grid.{name}' has a date or a time, which no key takes") from error
        require(setting not in settings, f"{where}: 'grid.{name}' has {setting} twice")
        settings[setting] = {name: value}
    return settings


def check_apart(changes: Changes, axes: Mapping[str, Mapping[Value, Changes]], where: str) -> None:
    """Raise where two axes, or an axis and [changes], would set the same key, or one a table that has the other's."""
    owners = {"changes": list(changes)}
    owners |= {f"grid.{name}": [key for each in settings.values() for key in each] for name, settings in axes.items()}
    seen: list[tuple[str, list[str]]] = []
    for owner, keys in owners.items():
        for key in dict.fromkeys(keys):
            parts = key_parts(key)
            require(bool(parts), f"{where}: {key!r} is no key; write it as data.clients is written")
            require(parts != ["seed"], f"{where}: '{owner}' sets 'seed'; list seeds in 'seeds'")
            for other, others in seen:
                both = min(len(parts), len(others))
                require(
                    other == owner or parts[:both] != others[:both],
                    f"{where}: '{key}' is set by '{owner}' and by '{other}'; one of them must go",
                )
            seen.append((owner, parts))


def changed(base: Mapping[str, Any], changes: Changes, where: str) -> Config:
    """The configuration that ``changes`` make of the table ``base``; ``where`` names it in error sentences."""
    table = copy.deepcopy(dict(base))
    for key, value in changes.items():
        try:
            change_key(table, key_parts(key), copy.deepcopy(value))
        except InputError as error:
            raise InputError(f"{where}: '{key}': {error}") from error
    _fill_last_share(table, changes, where)
    return parse_config(table, where)


def _fill_last_share(table: Mapping[str, Any], changes: Changes, where: str) -> None:
    """Where shares are changed but not the last group's, it takes what they leave; groups without clients stay so."""
    named = [key_parts(key) for key in changes]
    changed = {parts[2] for parts in named if parts[:2] == ["data", "groups"] and parts[3:] == ["share"]}
    # Where shares are changed, these are tables.
    groups = table["data"]["groups"] if changed else {}
    given = {name: group.get("share") for name, group in groups.items() if isinstance(group, dict)}
    shares = {name: float(share) for name, share in given.items() if isinstance(share, int | float)}
    last = [name for name, share in shares.items() if share > 0][-1:]
    if not last or last[0] in changed:
        return
    # Rounded, since 1 - 0.1 - 0.2 is not 0.7 in binary, and the written share should be.
    rest = round(1 - sum(share for name, share in shares.items() if name != last[0]), 12)
    require(rest > 0, f"{where}: the shares of the other groups leave nothing for '{last[0]}'")
    groups[last[0]]["share"] = rest
