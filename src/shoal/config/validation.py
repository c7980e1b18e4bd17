"""TOML files as checked values: every mistake is one sentence with the key, what was given and what is allowed."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from shoal.core.errors import InputError, nearest, require
from shoal.core.settings import allowed, spelled

Range = Annotated[list[float], Field(min_length=2, max_length=2)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A table of a file: unknown keys are errors, and types are taken as they are written."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


Root = TypeVar("Root", bound=Section)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file.

    Raises:
        InputError: the file is missing or not TOML, or has a whole number of more than 64 bits.
    """
    require("\0" not in str(path), f"{str(path)!r} is no path: it has a zero byte")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        large = next(_large(table), None)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise InputError(f"{path}: is not TOML: it is nested too deeply") from error
    # A ValueError is text that is no UTF-8 or no TOML, or a number of thousands of digits.
    except ValueError as error:
        raise InputError(f"{path}: is not TOML: {error}") from error
    require(large is None, f"{path}: has a whole number of {(large or 0).bit_length()} bits; at most 64 are allowed")
    return table


def _large(value: object) -> Iterator[int]:
    """The whole numbers in ``value`` that take more than 64 bits."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _large(each)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        yield value


def parse(root: type[Root], given: Mapping[str, Any], where: str) -> Root:
    """What a table says, as ``root``; ``where`` names the table in error sentences.

    Raises:
        InputError: a key is unknown or missing, or has a value that is not allowed.
    """
    try:
        return root.model_validate(dict(given))
    except ValidationError as error:
        # A mistyped key is often the reason why another is missing, so it comes first.
        errors = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
        raise InputError(f"{where}: {_sentence(root, errors)}") from error


def key_parts(key: str) -> list[str]:
    """The names in a dotted key, read as TOML reads it; none where it is no key.

    >>> key_parts('data.groups."far north".share')
    ['data', 'groups', 'far north', 'share']
    """
    try:
        # A heading can have neither a value nor, in the key's place, a line of its own.
        table: Any = tomllib.loads(f"{key} = 0")
        tomllib.loads(f"[{key}]")
    except tomllib.TOMLDecodeError:
        return []
    parts = []
    while isinstance(table, dict):
        if len(table) != 1:
            return []
        ((part, table),) = table.items()
        parts.append(part)
    return parts


def change_key(table: dict[str, Any], parts: Sequence[str], value: object) -> None:
    """Set the key with these names in ``table``, making the tables that lead there.

    Raises:
        InputError: one of the names leads to a value that is no table.
    """
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"'{part}' is a value, not a table")
    table[parts[-1]] = value


def _sentence(root: type[Section], errors: list[ErrorDetails]) -> str:
    first = errors[0]
    path = _keys(root, first)
    key = ".".join(path)
    match first["type"]:
        case "extra_forbidden":
            section, _ = _at(root, path[:-1])
            known = section.model_fields if section is not None else ()
            return f"unknown key '{key}'; {nearest(path[-1], known)}"
        case "missing":
            return f"the key '{key}' is missing"
        case _:
            same = [error for error in errors if _keys(root, error) == path]
            return f"'{key}' must be {allowed(same)}; got {spelled(first['input'])}"


def _keys(root: type[Section], error: ErrorDetails) -> list[str]:
    """The keys that lead to an error, without what pydantic adds: the type it tried, and positions in lists."""
    kept: list[str] = []
    for part in error["loc"]:
        section, named = _at(root, kept)
        known = named or (section is not None and str(part) in section.model_fields)
        if not known and error["type"] != "extra_forbidden":
            break
        kept.append(str(part))
    return kept


def _at(root: type[Section], path: Sequence[str]) -> tuple[type[Section] | None, bool]:
    """What a path of keys leads to: a section, or none; and whether to a table whose keys are names."""
    section: type[Section] | None = root
    names = False
    for part in path:
        if names:
            names = False
            continue
        if section is None or part not in section.model_fields:
            return None, False
        annotation = section.model_fields[part].annotation
        kinds = [annotation, *get_args(annotation)]
        table = next((kind for kind in kinds if get_origin(kind) is dict), None)
        names = table is not None
        inside = kinds if table is None else get_args(table)
        section = next((kind for kind in inside if isinstance(kind, type) and issubclass(kind, Section)), None)
    return (None if names else section), names
