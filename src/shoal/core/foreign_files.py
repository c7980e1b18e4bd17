"""Bounds on files that strangers may have written: each function raises `ValueError` with what is wrong."""

import json
from pathlib import Path
from typing import Any

MAX_TEXT = 2**25
"""Bytes of a file of JSON or TOML."""

MAX_DEPTH = 64
"""Tables and lists inside each other."""


def read_text(path: Path) -> str:
    """A file of JSON or TOML in UTF-8.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too long, or no UTF-8.
    """
    with path.open("rb") as file:
        content = file.read(MAX_TEXT + 1)
    if len(content) > MAX_TEXT:
        raise ValueError(f"it has more than {MAX_TEXT:,} bytes")
    return content.decode("utf-8-sig")


def read_json(path: Path) -> Any:  # noqa: ANN401 - whatever JSON has
    """The value in a file of JSON.

    Raises:
        OSError: it cannot be read.
        ValueError: it is too long, nested too deeply, or no JSON.
    """
    return parse_json(read_text(path))


def parse_json(text: str) -> Any:  # noqa: ANN401 - whatever JSON has
    """The value in a text of JSON.

    Raises:
        ValueError: it is nested too deeply, or no JSON.
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    require_shallow(value)
    return value


def require_shallow(value: object) -> None:
    """Raise `ValueError` where tables and lists are nested too deeply for readers that call themselves.

    >>> require_shallow({"a": [1]})
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            member
            for each in level
            if isinstance(each, dict | list)
            for member in (each.values() if isinstance(each, dict) else each)
        ]
    if level:
        raise ValueError("it is nested too deeply")
