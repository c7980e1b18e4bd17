"""Representations of values in Python and notebooks: one line under 200 characters, whatever it holds."""

import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

LONGEST = 199
"""Characters of a line."""

_PART = 60
"""Characters of one field."""


def one_line(self: Any) -> str:  # noqa: ANN401
    """The ``__repr__`` of a dataclass: its fields that differ from their defaults, tensors and tables by their shapes.

    >>> from dataclasses import dataclass
    >>> @dataclass
    ... class Example:
    ...     models: object
    ...     rounds: int = 10
    ...     __repr__ = one_line
    >>> import torch
    >>> Example(torch.zeros(2, 3)), Example("many", 20)
    (Example(models=Tensor (2, 3)), Example(models='many', rounds=20))
    """
    shown = [field for field in fields(self) if field.repr and not _is_default(field, getattr(self, field.name))]
    inside = ", ".join(f"{field.name}={shorten(_spelled(getattr(self, field.name)), _PART)}" for field in shown)
    return shorten(f"{type(self).__name__}({inside})")


def shorten(text: str, most: int = LONGEST) -> str:
    """``text`` on one line of at most so many characters; what is left out is an ellipsis before its last character.

    >>> shorten("Federation(9 clients (few 3, many 6))", 24)
    'Federation(9 clients (…)'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 2]}…{line[-1]}"


def _is_default(field: Field[Any], value: object) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    # Tables and arrays compare element by element.
    return value is default or (type(value) is type(default) and not hasattr(value, "shape") and value == default)


def _spelled(value: Any) -> str:  # noqa: ANN401
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(value).__name__} {tuple(shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(str, value))}}}"
    if type(value) is tuple:
        return f"({', '.join(map(_spelled, value))}{',' if len(value) == 1 else ''})"
    named = getattr(value, "__qualname__", None)
    return str(named) if named is not None else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
