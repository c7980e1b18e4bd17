"""Changes of keys, and checks that keys belong to the named algorithm, network or forgetting method."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from shoal.config.kinds import KINDS, Kind, kind_of, name_of
from shoal.config.settings_tables import dotted, keys_of, names_of
from shoal.config.toml_files import key_parts
from shoal.core.errors import InputError, quote
from shoal.engine import Algorithm, Forgetting
from shoal.models.named_models import lacking_keys

_KIND = KINDS[Algorithm]
_COMMON_KEYS = ("name", "rounds", "participation")


def require_own_keys(
    table: Mapping[str, Any], where: str = "algorithm", by: str = "name", kind: Kind = _KIND, default: object = None
) -> None:
    """Raise `InputError` if ``table``, or a base algorithm's table inside it, has a key that the named class lacks.

    Args:
        table: the table of an algorithm or a forgetting method.
        where: the table's dotted key.
        by: the key that names the class.
        kind: the classes that the table can name.
        default: the settings that apply if the table names no class.

    >>> require_own_keys({"name": "fedavg", "rounds": 2, "alpha": 0.1})
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'algorithm.alpha' is a key of 'apfl', 'per-fedavg', not of 'fedavg'; remove this key
    """
    for _, key, path, name in _foreign_keys(table, where, default, by, kind):
        owners = [owner for owner, cls in kind.shipped.items() if key in names_of(cls)]
        some = quote(owners[:4]) + " and others" * (len(owners) > 4)
        raise InputError(f"'{path}' is a key of {some}, not of '{name}'; remove this key")


def set_keys(table: dict[str, Any], changes: Mapping[str, object]) -> None:
    """Set dotted keys in ``table``, names of classes first, and remove keys that the new classes lack.

    Raises:
        InputError: a dotted key leads through a value that is not a table.

    >>> table = {"algorithm": {"name": "apfl", "alpha": 0.1}}
    >>> set_keys(table, {"algorithm.rounds": 5, "algorithm.name": "fedavg"})
    >>> table
    {'algorithm': {'name': 'fedavg', 'rounds': 5}}
    """
    for key, parts in sorted(((key, key_parts(key)) for key in changes), key=lambda pair: _order(pair[1])):
        section = table
        for part in parts[:-1]:
            section = section.setdefault(part, {})
            if not isinstance(section, dict):
                raise InputError(f"'{key}' cannot be set: '{part}' is a value, not a table")
        section[parts[-1]] = deepcopy(changes[key])
        if _order(parts)[0]:
            continue
        if parts[0] == "model":
            for foreign in lacking_keys(str(section["name"])):
                section.pop(foreign, None)
            continue
        kind = KINDS[Forgetting] if parts[0] == "forgetting" else _KIND
        for inside, foreign, _, _ in [*_foreign_keys(section, parts[0], None, parts[-1], kind)]:
            inside.pop(foreign)


def _order(parts: list[str]) -> tuple[bool, int]:
    """Return the sort key of a change: class names first, with base algorithms last, then all other keys."""
    names = parts in (["model", "name"], ["forgetting", "method"])
    names = names or (len(parts) > 1 and parts[0] == "algorithm" and parts[-1] == "name")
    return not names, len(parts) if names else 0


def _foreign_keys(
    table: Mapping[str, Any], where: str, default: object = None, by: str = "name", kind: Kind = _KIND
) -> Iterator[tuple[Any, str, str, str]]:
    """Yield keys that belong to other classes than the named class, as (table, key, path, named class)."""
    if by not in table and not isinstance(default, kind.protocol):
        return
    try:
        cls = kind.named(table[by], where) if by in table else type(default)
    except InputError:
        # The reader of the table reports an unknown name.
        return
    foreign = {name for other in kind.shipped.values() for name in names_of(other)}
    foreign -= {*_COMMON_KEYS, by, *names_of(cls)}
    yield from ((table, key, dotted(where, key), name_of(cls)) for key in table if key in foreign)
    for key in keys_of(cls):
        if kind_of(key.hint) is kind and isinstance(table.get(key.name), dict):
            yield from _foreign_keys(table[key.name], dotted(where, key.name), key.default)
