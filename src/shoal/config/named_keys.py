"""The keys of [algorithm], [model] and [forgetting] that belong to what is named there, and those of others."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shoal.config.kinds import KINDS, Kind, kind_of, name_of
from shoal.config.settings_tables import dotted, keys_of, names_of
from shoal.config.toml_files import key_parts
from shoal.core.errors import InputError, quote
from shoal.engine import Algorithm, Forgetting
from shoal.models.named_models import lacking_keys

_KIND = KINDS[Algorithm]
_OF_ALL = ("name", "rounds", "participation")
_MOST_OWNERS = 4


def require_own_keys(
    table: Mapping[str, Any], where: str = "algorithm", by: str = "name", kind: Kind = _KIND, default: object = None
) -> None:
    """Raise `InputError` where a table, or a base in it, has a key that only others of its kind have.

    ``by`` is the key that names one of the kind; ``default`` is what a table without it is.

    >>> require_own_keys({"name": "fedavg", "rounds": 2, "alpha": 0.1})
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'algorithm.alpha' is a key of 'apfl', 'per-fedavg', not of 'fedavg'; leave it out
    """
    for _, key, path, name in _foreign_keys(table, where, default, by, kind):
        owners = [owner for owner, cls in kind.shipped.items() if key in names_of(cls)]
        some = quote(owners[:_MOST_OWNERS]) + " and others" * (len(owners) > _MOST_OWNERS)
        raise InputError(f"'{path}' is a key of {some}, not of '{name}'; leave it out")


def names_first(changes: Iterable[str]) -> list[str]:
    """Changes such as "algorithm.rounds=10", or their keys, with those of an algorithm's or a network's name first.

    >>> names_first(["seed", "algorithm.base.name", "algorithm.name"])
    ['algorithm.name', 'algorithm.base.name', 'seed']
    """

    def place(change: str) -> tuple[bool, int]:
        parts = _parts_of_name(change)
        return not parts, len(parts)

    return sorted(changes, key=place)


def drop_foreign_keys(table: dict[str, Any], change: str) -> None:
    """Where ``change`` has named another algorithm, network or forgetting method, remove the keys that it lacks."""
    parts, section = _parts_of_name(change), table
    for part in parts[:-1]:
        section = section[part]
    if parts[:1] == ["model"]:
        for key in lacking_keys(str(section["name"])):
            section.pop(key, None)
    kind = {"algorithm": _KIND, "forgetting": KINDS[Forgetting]}.get("".join(parts[:1]))
    for inside, key, _, _ in [*_foreign_keys(section, parts[0], None, parts[-1], kind)] if kind else ():
        inside.pop(key)


def _parts_of_name(change: str) -> list[str]:
    """The parts of the key that ``change`` sets where it names the network, the algorithm or a base; else none."""
    parts = key_parts(str(change).partition("=")[0])
    named = parts in (["model", "name"], ["forgetting", "method"])
    named = named or (len(parts) > 1 and parts[0] == "algorithm" and parts[-1] == "name")
    return parts if named else []


def _foreign_keys(
    table: Mapping[str, Any], where: str, default: object = None, by: str = "name", kind: Kind = _KIND
) -> Iterator[tuple[Any, str, str, str]]:
    """Each key of others of the kind than the named one: the table it is in, its name, its path, the named one."""
    if by not in table and not isinstance(default, kind.protocol):
        return
    try:
        cls = kind.named(table[by], where) if by in table else type(default)
    except InputError:
        # An unknown name is told by what reads the table.
        return
    everybody = {name for other in kind.shipped.values() for name in names_of(other)}
    own = {*_OF_ALL, by, *names_of(cls)}
    yield from ((table, key, dotted(where, key), name_of(cls)) for key in table if key in everybody - own)
    for key in keys_of(cls):
        if kind_of(key.hint) is kind and isinstance(table.get(key.name), dict):
            yield from _foreign_keys(table[key.name], dotted(where, key.name), key.default)
