"""TOML files as checked values: every mistake is one sentence with the key, what was given and what is allowed."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shoal.config.settings_tables import UnknownKeyError, read, tables_with
from shoal.core.errors import BACKSLASH, InputError, escape_text, path_of, read_error, require, require_instance
from shoal.core.foreign_files import MAX_DEPTH, parse_shallow, read_text

Root = TypeVar("Root")


def read_toml(path: str | Path) -> dict[str, Any]:
    """The table in a TOML file.

    Raises:
        InputError: the file is missing or not TOML, or has an integer of more than 64 bits.
    """
    path, text = path_of("path", path), ""
    try:
        text = read_text(path)
        table = parse_toml(text)
    except OSError as error:
        raise InputError(f"{escape_text(path)}: cannot be read: {read_error(path, error)}") from error
    # A ValueError is text that is no UTF-8 or no TOML, or a number of thousands of digits.
    except ValueError as error:
        at = re.search(r"\(at (?:line (\d+)|end of document)", str(error))
        escape = at is not None and "\\" in text.split("\n")[int(at[1] or 0) - 1]
        raise InputError(f"{path}: is not TOML: {error}{BACKSLASH if escape else ''}") from error
    _require_64_bits(table, str(path))
    return table


_PART = r"""(?:"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+'|[\w-]++)"""
_TOKEN = re.compile(
    r'''#[^\n]*+|"""(?:[^"\\]|\\.|""?(?!"))*+"{3,5}|'''
    r"""'''(?:[^']|''?(?!'))*+'{3,5}|"""
    rf"({_PART}(?:[ \t]*+\.[ \t]*+{_PART})*+)",
    re.DOTALL,
)
"""A comment, a string of several lines, or, as a group, names with dots between them, which may be a key."""


def parse_toml(text: str) -> dict[str, Any]:
    """The table in a text of TOML.

    Raises:
        ValueError: it is not TOML, or nested too deeply.
    """
    for token in _TOKEN.finditer(text):
        # Python's parser takes time by the square of a key's parts.
        if (token[1] or "").count(".") > MAX_DEPTH and len(re.findall(_PART, token[1])) > MAX_DEPTH:
            raise ValueError(f"a key has more than {MAX_DEPTH} parts")
    return parse_shallow(tomllib.loads, text)


def _require_64_bits(value: object, where: str) -> None:
    """Raise `InputError` where ``value`` has a larger integer, which no other reader of TOML need understand."""
    large = next(_large(value), None)
    require(large is None, f"{where}: has an integer of {(large or 0).bit_length()} bits; at most 64 are allowed")


def _large(value: object) -> Iterator[int]:
    """The integers in ``value`` that take more than 64 bits."""
    if isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            yield from _large(member)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        yield value


def parse(root: type[Root], table: Mapping[str, Any], where: str) -> Root:
    """Read a file's table as the settings ``root``; ``where`` names the file in error sentences.

    Raises:
        InputError: a key is unknown or missing, or has a value that is not allowed.
    """
    try:
        return read(root, dict(table))
    except UnknownKeyError as error:
        homes = [f"[{home}]" if home else "the file itself" for home in tables_with(root, error.name)]
        elsewhere = f"unknown key '{error.path}'; it is a key of {' and of '.join(homes)}"
        unlike = "; known: " in str(error)
        raise InputError(f"{where}: {elsewhere if homes and unlike else error}") from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def key_parts(key: str) -> list[str]:
    """The names in a dotted key, read as TOML reads it; none where it is no key.

    >>> key_parts('data.groups."far north".share')
    ['data', 'groups', 'far north', 'share']
    """
    try:
        # A heading can have neither a value nor, in the key's place, a line of its own.
        table: Any = parse_toml(f"{key} = 0")
        parse_toml(f"[{key}]")
    except ValueError:
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
        InputError: one of the names leads to a value that is not a table.
    """
    for part in parts[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise InputError(f"'{part}' is a value, not a table")
    table[parts[-1]] = value


def remove_section(table: dict[str, Any], parts: Sequence[str]) -> bool:
    """Remove the section with these names from ``table``; returns whether there was one.

    >>> table = {"defenses": {"clipping": {"norm": 1.0}}}
    >>> remove_section(table, ["defenses", "clipping"]), table
    (True, {'defenses': {}})
    """
    *outer, last = parts
    for part in outer:
        table = table.get(part, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict) or not isinstance(table.get(last), dict):
        return False
    del table[last]
    return True


def change(table: dict[str, Any], wish: str) -> None:
    """Make a change such as "algorithm.rounds=10" to ``table``; a value that is not TOML is text.

    Raises:
        InputError: it is no such change, has an integer of more than 64 bits, or one of its names leads to a value
            that is not a table.
    """
    require_instance("changes", wish, str, "such as 'algorithm.rounds=10'")
    key, equals, text = wish.partition("=")
    parts = key_parts(key)
    require(bool(equals and parts), f"--set takes KEY=VALUE, such as algorithm.rounds=10; got '{wish}'")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        value = text
    _require_64_bits(value, f"--set {wish}")
    try:
        change_key(table, parts, value)
    except InputError as error:
        raise InputError(f"--set {wish}: {error}") from error
