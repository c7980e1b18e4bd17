"""Errors that a user's input causes, and the helpers that write their messages.

A message names the input, the given value and the allowed values. The command line prints the message and exits with
code 2.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Number
from os import PathLike
from pathlib import Path

from shoal.core.formats import shorten

BACKSLASH = r"; TOML reads a backslash in double quotes as an escape; write 'C:\a.csv' in single quotes, or C:/a.csv"
"""Advice on Windows paths for the end of an error message."""


class ShoalError(Exception):
    """An error caused by the user's input or machine, with a one-sentence message.

    Example:
        >>> import shoal
        >>> try:
        ...     shoal.LocalSGD(epochs=1, steps=10)
        ... except shoal.ShoalError as error:
        ...     print(error)
        ...
        epochs and steps exclude each other (got epochs = 1 and steps = 10); remove one
    """


class InputError(ShoalError, ValueError):
    """An error in the user's input, such as a configuration value, a file or a tensor.

    Example:
        >>> import shoal
        >>> shoal.LocalSGD(epochs=1, steps=10)
        Traceback (most recent call last):
            ...
        shoal.core.errors.InputError: epochs and steps exclude each other (got epochs = 1 and steps = 10); remove one
    """


def require(condition: bool, sentence: str) -> None:
    """Raise `InputError` with the message ``sentence`` unless ``condition`` holds.

    >>> require(1 > 0, "never seen")
    >>> require(0.0 > 0, "'local.learning_rate' must be above 0 (got 0.0)")
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'local.learning_rate' must be above 0 (got 0.0)
    """
    if not condition:
        raise InputError(sentence)


@contextmanager
def locate_errors(place: object) -> Iterator[None]:
    """Put ``place``, such as a file's name, before the message of every `InputError` raised in this context.

    >>> with locate_errors("records.npz"):
    ...     require(False, "has no records")
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: records.npz: has no records
    """
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from error


@contextmanager
def file_errors(
    path: object, advice: str = "", *, action: str = "read", damage: tuple[type[Exception], ...] = ()
) -> Iterator[None]:
    """Convert errors of an ``action`` on a file to `InputError`, with ``advice`` at the end of the message.

    Exceptions of the types in ``damage`` mean that the file is damaged.

    >>> with file_errors("a.json", damage=(ValueError,)):
    ...     int("one")
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: a.json: is damaged: invalid literal for int() with base 10: 'one'
    """
    try:
        yield
    except InputError:
        raise
    except damage as error:
        raise InputError(f"{path}: is damaged: {' '.join(str(error).split())}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be {action}: {read_error(path, error)}{advice}") from error


def read_error(path: object, error: OSError) -> str:
    """Return the reason why a file cannot be read, with the searched folder if the file is missing."""
    return (
        f"{error.strerror}{search_place(path)}"
        if isinstance(error, FileNotFoundError)
        else f"{error.strerror or error}"
    )


def search_place(path: object) -> str:
    """Return the end of an error message on a missing file, which names the searched folder.

    For a path with unprintable characters, return advice on backslashes in TOML strings.

    >>> search_place("/wards/a.csv")
    " in the folder '/wards'"
    >>> "single quotes" in search_place("C:" + chr(10) + "ew.csv")
    True
    """
    if str(path).isprintable():
        return f" in the folder '{Path(str(path)).absolute().parent}'"
    return BACKSLASH


def escape_text(path: object) -> str:
    """Return a path on one line, with unprintable characters escaped as in Python."""
    return str(path) if str(path).isprintable() else repr(str(path))[1:-1]


def require_instance(name: str, value: object, kind: type, how: str) -> None:
    """Raise `InputError` unless ``value`` is an instance of ``kind``; the message contains the example ``how``.

    >>> require_instance("out", 3, str, "such as 'runs/mine'")
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'out' must be a str, such as 'runs/mine' (got 3)
    """
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    require(isinstance(value, kind), f"'{name}' must be {article} {kind.__name__}, {how} (got {describe(value)})")


def integer(name: str, value: object, how: str, least: int | None = None) -> int:
    """Return ``value``, a Python or NumPy integer, as a Python integer.

    Raises:
        InputError: the value is not an integer, or is below ``least``; the message shows the example ``how``.

    >>> integer("rounds", "3", "such as 30")
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'rounds' must be an integer, such as 30 (got '3')
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"'{name}' must be an integer, {how} (got {describe(value)})")
    number = int(value)
    require(least is None or number >= least, f"'{name}' must be at least {least} (got {number})")
    return number


def path_of(name: str, value: object) -> Path:
    """Return the path in ``value``, a string or a `Path`.

    Raises:
        InputError: the value is not a string or path, is empty, or has a null byte.

    >>> path_of("out", None)
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'out' must be a path, such as 'runs/mine' (got None)
    """
    if not isinstance(value, str | PathLike):
        raise InputError(f"'{name}' must be a path, such as 'runs/mine' (got {describe(value)})")
    require(value != "", f"'{name}' must be a path, such as 'runs/mine' (got '')")
    require("\0" not in str(value), f"'{name}' must be a path without null bytes (got {str(value)!r})")
    return Path(value)


def describe(value: object) -> str:
    """Return a value for an error message: strings and numbers as in Python, other values by their type.

    >>> describe(2.5), describe([1, 2]), describe(dict)
    ('2.5', 'list of 2', 'the class dict')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | Number):
        return shorten(repr(value) if isinstance(value, str) else str(value))
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def quote(names: Iterable[str]) -> str:
    """Return names for a message, as ``'a', 'b'``."""
    return ", ".join(f"'{name}'" for name in names)


def suggest(word: object, allowed: Iterable[str], unlisted: Iterable[str] = ()) -> str:
    """Return the word closest to ``word`` as a hint, or up to 100 ``allowed`` words if no word is close.

    A word is close if it begins with ``word`` or has a similarity of at least 0.75. Words in ``unlisted`` can be hints
    but are never listed.

    >>> suggest("round", ["rounds", "clusters"]), suggest("emnist", ["emnist-byclass", "mnist"])
    ("did you mean 'rounds'?", "did you mean 'emnist-byclass'?")
    >>> suggest("ground", ["rounds", "around-all"]), suggest("beta", ["delta", "rounds"])
    ("did you mean 'rounds'?", 'known: delta, rounds')
    """
    word, words = str(word), sorted(allowed)
    longer = [candidate for candidate in words if len(word) > 2 and candidate.startswith(word)]
    close = longer or difflib.get_close_matches(word, sorted({*words, *unlisted}), n=1, cutoff=0.75)
    more = f" and {len(words) - 100:,} more" if len(words) > 100 else ""
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(words[:100])}{more}"
