"""The one sentence for bad input.

Everything a user can get wrong raises `InputError` with a sentence that says what was given, what is
allowed, and where. The command line prints that sentence and exits with code 2.
"""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from numbers import Integral, Number
from os import PathLike
from pathlib import Path

from shoal.core.formats import shorten

BACKSLASH = r"; TOML reads a backslash in double quotes as an escape; write 'C:\a.csv' in single quotes, or C:/a.csv"
"""Advice on a path of Windows, as the end of a sentence."""


class ShoalError(Exception):
    """Something went wrong that is not a defect of Shoal; the text is one sentence for its user.

    Example:
        >>> import shoal
        >>> try:
        ...     shoal.LocalSGD(epochs=1, steps=10)
        ... except shoal.ShoalError as error:
        ...     print(error)
        ...
        give either epochs or steps; got epochs = 1 and steps = 10
    """


class InputError(ShoalError, ValueError):
    """The user's input cannot be used: a config value, a file, a tensor.

    Example:
        >>> import shoal
        >>> shoal.LocalSGD(epochs=1, steps=10)
        Traceback (most recent call last):
            ...
        shoal.core.errors.InputError: give either epochs or steps; got epochs = 1 and steps = 10
    """


def require(condition: bool, sentence: str) -> None:
    """Raise `InputError` with ``sentence`` unless ``condition`` holds.

    >>> require(1 > 0, "never seen")
    >>> require(0.0 > 0, "'local.learning_rate' must be above 0; got 0.0")
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'local.learning_rate' must be above 0; got 0.0
    """
    if not condition:
        raise InputError(sentence)


@contextmanager
def locate_errors(place: object) -> Iterator[None]:
    """Errors of the input at a place, such as a file, whose sentences then begin with it.

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
    """Errors of an ``action`` on a file as one sentence, which ends with ``advice``; ``damage`` says it is damaged.

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
    """The reason why a file cannot be read; of a missing one with the place where it was looked for."""
    return (
        f"{error.strerror}{search_place(path)}"
        if isinstance(error, FileNotFoundError)
        else f"{error.strerror or error}"
    )


def search_place(path: object) -> str:
    """Where a file that is missing was looked for, as the end of a sentence.

    A sign that cannot be printed comes from a backslash in a text of TOML.

    >>> search_place("/wards/a.csv")
    " in the folder '/wards'"
    >>> "single quotes" in search_place("C:" + chr(10) + "ew.csv")
    True
    """
    if str(path).isprintable():
        return f" in the folder '{Path(str(path)).absolute().parent}'"
    return BACKSLASH


def escape_text(path: object) -> str:
    """A path on one line: signs that cannot be printed as Python escapes them."""
    return str(path) if str(path).isprintable() else repr(str(path))[1:-1]


def require_instance(name: str, value: object, kind: type, how: str) -> None:
    """Raise `InputError` unless ``value`` is of ``kind``; ``how`` says how to make one.

    >>> require_instance("out", 3, str, "such as 'runs/mine'")
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'out' must be a str, such as 'runs/mine'; got 3
    """
    article = "an" if kind.__name__[0] in "AEIOU" else "a"
    require(isinstance(value, kind), f"'{name}' must be {article} {kind.__name__}, {how}; got {describe(value)}")


def integer(name: str, value: object, how: str, least: int | None = None) -> int:
    """``value`` as Python's integer, also one of NumPy's.

    Raises:
        InputError: it is none, or below ``least``; ``how`` gives an example.

    >>> integer("rounds", "3", "such as 30")
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'rounds' must be an integer, such as 30; got '3'
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InputError(f"'{name}' must be an integer, {how}; got {describe(value)}")
    number = int(value)
    require(least is None or number >= least, f"'{name}' must be at least {least}; got {number}")
    return number


def path_of(name: str, value: object) -> Path:
    """The path that ``value`` is, a text or a `Path`.

    Raises:
        InputError: it is neither, or no path of a file system.

    >>> path_of("out", None)
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'out' must be a path, such as 'runs/mine'; got None
    """
    if not isinstance(value, str | PathLike):
        raise InputError(f"'{name}' must be a path, such as 'runs/mine'; got {describe(value)}")
    require(value != "", f"'{name}' must be a path, such as 'runs/mine'; got ''")
    require("\0" not in str(value), f"{str(value)!r} is not a path: it has a zero byte")
    return Path(value)


def describe(value: object) -> str:
    """A value in an error sentence: texts and numbers as Python writes them, others by their type.

    >>> describe(2.5), describe([1, 2]), describe(dict)
    ('2.5', 'list of 2', 'the class dict')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | Number):
        return shorten(repr(value) if isinstance(value, str) else str(value))
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def quote(names: Iterable[str]) -> str:
    """Names in a sentence: ``'a', 'b'``."""
    return ", ".join(f"'{name}'" for name in names)


def suggest(word: object, allowed: Iterable[str], unlisted: Iterable[str] = ()) -> str:
    """A hint naming the word closest to ``word``, or 100 of them but ``unlisted`` ones when none is close.

    A word is close if it begins with ``word``, or if three quarters of both are the same.

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
