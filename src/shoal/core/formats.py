"""Text formats of numbers, names and values in reports, tables, notebooks and on the command line."""

import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pandas as pd


DASH = "\N{EN DASH}"
"""The text for an undefined number, such as the exposure of a model without clients."""


ACCURACY = "accuracy"
"""The metric of a classification, the fraction of correctly classified examples."""


def percent(value: float) -> str:
    """Format a fraction as a percentage.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{100 * value:.1f} %"


def decimal(value: float) -> str:
    """Format a number in [0, 1] with three decimals.

    >>> decimal(0.1234)
    '0.123'
    """
    return f"{value:.3f}"


def number(value: float) -> str:
    """Format a number of any size with four significant digits.

    >>> number(-0.0123456), number(-1234567.0)
    ('-0.01235', '-1.235e+06')
    """
    return f"{value:.4g}"


def metric_format(metric: str) -> Callable[[float], str]:
    """Return the function that formats a metric's values."""
    return decimal if metric == ACCURACY else number


def capitalize(name: str) -> str:
    """Return a name with an upper-case first letter, for the beginning of a line.

    >>> capitalize("minus squared error"), capitalize("R2")
    ('Minus squared error', 'R2')
    """
    return name[:1].upper() + name[1:]


def count(value: float) -> str:
    """Format a count with thousands separators.

    >>> count(1234.0)
    '1,234'
    """
    return f"{int(value):,}"


def format_duration(seconds: float) -> str:
    """Format a wall time in seconds.

    >>> [format_duration(seconds) for seconds in (4.25, 18.8, 754, 3725)]
    ['4.2 s', '19 s', '12 min 34 s', '1 h 02 min']
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def join_words(names: Sequence[str], most: int = 100) -> str:
    """Join names for a sentence; names after the first ``most`` are only counted.

    >>> join_words(["a"]), join_words(["a", "b", "c"]), join_words(["a", "b", "c", "d"], 2)
    ('a', 'a, b and c', 'a, b and 2 more')
    """
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


_SharedKey = TypeVar("_SharedKey", bound=Hashable)


def names_by(pairs: Iterable[tuple[str, _SharedKey]]) -> dict[_SharedKey, list[str]]:
    """Group names by a shared key, in order of first appearance.

    >>> names_by([("a", "gain"), ("b", "cost"), ("c", "gain")])
    {'gain': ['a', 'c'], 'cost': ['b']}
    """
    names = dict[_SharedKey, list[str]]()
    for name, key in pairs:
        names.setdefault(key, []).append(name)
    return names


def name_examples(text: str, kind: str) -> str:
    """Replace the word "image" in a text by ``kind``, a plural such as "rows"; the text must not contain users' names.

    >>> name_examples("Held-out images, each a training image or not.", "rows")
    'Held-out rows, each a training row or not.'
    """
    return re.sub(r"\bimage(s?)\b", lambda match: kind.removesuffix("s") + match[1], text)


def cell(text: str) -> str:
    """Return an untrusted text as a CSV cell that no spreadsheet evaluates as a formula; `from_cell` is the inverse.

    >>> cell("=1+1"), cell("north"), from_cell(cell("=1+1")), from_cell(cell("'=")), from_cell("'t Gooi")
    ("'=1+1", 'north', '=1+1', "'=", "'t Gooi")
    """
    return f"'{text}" if re.match(r"'*[=+\-@\t\r]", text) else text


def from_cell(text: str) -> str:
    """Return the original text of a CSV cell written by `cell`."""
    return text[1:] if re.match(r"'+[=+\-@\t\r]", text) else text


def csv_text(frame: "pd.DataFrame") -> str:
    """Return a table as CSV, with texts converted by `cell`."""
    return _texts_changed(frame, map(str, frame), cell).to_csv(index=False, lineterminator="\n")


def from_cells(frame: "pd.DataFrame", columns: Iterable[str]) -> "pd.DataFrame":
    """Return a table read from CSV, with the texts in ``columns`` restored by `from_cell`."""
    return _texts_changed(frame, [name for name in columns if name in frame], from_cell)


def _texts_changed(frame: "pd.DataFrame", columns: Iterable[str], change: Callable[[str], str]) -> "pd.DataFrame":
    """Return a frame with changed texts; columns without changes keep their types."""
    changed = {}
    for name in columns:
        texts = [text for text in frame[name].unique() if isinstance(text, str)]
        new = {text: change(text) for text in texts if change(text) != text}
        if new:
            changed[name] = [new.get(value, value) for value in frame[name]]
    return frame.assign(**changed)


LONGEST = 199
"""The maximum number of characters per line."""

_PART = 60
"""The maximum number of characters per field."""


def one_line(self: Any) -> str:  # noqa: ANN401
    """Return the one-line ``__repr__`` of a dataclass, with non-default fields only and tensors shown by their shapes.

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
    inside = ", ".join(f"{field.name}={shorten(_spell(getattr(self, field.name)), _PART)}" for field in shown)
    return shorten(f"{type(self).__name__}({inside})")


def shorten(text: str, most: int = LONGEST) -> str:
    """Return ``text`` on one line of at most ``most`` characters, and keep the last character of a longer text.

    >>> shorten("Federation(9 clients (few 3, many 6))", 24)
    'Federation(9 clients (…)'
    """
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 2]}…{line[-1]}"


def _is_default(field: Field[Any], value: object) -> bool:
    default = field.default if field.default_factory is MISSING else field.default_factory()
    # Tables and arrays compare element by element.
    return value is default or (type(value) is type(default) and not hasattr(value, "shape") and value == default)


def _spell(value: Any) -> str:  # noqa: ANN401
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(value).__name__} {tuple(shape)}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(map(str, value))}}}"
    if type(value) is tuple:
        return f"({', '.join(map(_spell, value))}{',' if len(value) == 1 else ''})"
    named = getattr(value, "__qualname__", None)
    return str(named) if named is not None else re.sub(r" at 0x[0-9a-f]+", "", repr(value))
