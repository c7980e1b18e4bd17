"""TOML files as checked settings; every error is one sentence with the key, the value and the allowed values."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from shoal.config.settings_tables import UnknownKeyError, read, tables_with
from shoal.core.errors import BACKSLASH, InputError, escape_text, path_of, read_error, require, require_instance
from shoal.core.foreign_files import MAX_DEPTH, parse_shallow, read_text

Root = TypeVar("Root")


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        InputError: the file is missing, is not TOML, or has an integer of more than 64 bits.
    """
    path, text = path_of("path", path), ""
    try:
        text = read_text(path)
        table = parse_toml(text)
    except OSError as error:
        raise InputError(f"{escape_text(path)}: cannot be read: {read_error(path, error)}") from error
    # A ValueError: not UTF-8, not TOML, or a number with thousands of digits.
    except ValueError as error:
        at = re.search(r"\(at (?:line (\d+)|end of document)", str(error))
        escape = at is not None and "\\" in text.split("\n")[int(at[1] or 0) - 1]
        twice = re.match(r"Cannot (overwrite a value|declare .* twice)", str(error))
        if twice is not None and at is not None:
            where = f"line {at[1]}" if at[1] else "the last line"
            raise InputError(f"{path}: is not TOML: {where} repeats a key or table; keep one of the two") from error
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
"""Matches a comment, a multi-line string, or (in the group) dotted names that may be a key."""


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: the text is not TOML, or is nested too deeply.
    """
    for token in _TOKEN.finditer(text):
        # The time of Python's parser grows with the square of a key's parts.
        if (token[1] or "").count(".") > MAX_DEPTH and len(re.findall(_PART, token[1])) > MAX_DEPTH:
            raise ValueError(f"a key has more than {MAX_DEPTH} parts")
    return parse_shallow(tomllib.loads, text)


def _require_64_bits(value: object, where: str) -> None:
    """Raise `InputError` if ``value`` contains an integer of more than 64 bits, which TOML does not guarantee."""
    if isinstance(value, dict | list):
        for member in value.values() if isinstance(value, dict) else value:
            _require_64_bits(member, where)
    elif isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise InputError(f"{where}: has an integer of more than 64 bits (got {value.bit_length()} bits)")


def parse(root: type[Root], table: Mapping[str, Any], where: str) -> Root:
    """Parse a file's table as the settings class ``root``.

    Args:
        root: the settings class of the whole file.
        table: the file's table.
        where: the file's name in error messages.

    Raises:
        InputError: a key is unknown or missing, or a value is not allowed.
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
    """Split a dotted key of TOML into names; an invalid key gives an empty list.

    >>> key_parts('data.groups."far north".share')
    ['data', 'groups', 'far north', 'share']
    """
    try:
        # As a heading too, since a heading excludes values and line breaks.
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


def remove_section(table: dict[str, Any], parts: Sequence[str]) -> bool:
    """Remove the section with these names from ``table``; return whether the section existed.

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


def parse_change(change: str) -> tuple[str, Any]:
    """Parse a change such as "algorithm.rounds=10" into key and value; a value that is not TOML becomes text.

    Raises:
        InputError: the change is not KEY=VALUE, or has an integer of more than 64 bits.
    """
    require_instance("changes", change, str, "such as 'algorithm.rounds=10'")
    key, equals, text = change.partition("=")
    require(bool(equals and key_parts(key)), f"--set must be KEY=VALUE, such as algorithm.rounds=10 (got '{change}')")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        value = text
    _require_64_bits(value, f"--set {change}")
    return key.strip(), value
