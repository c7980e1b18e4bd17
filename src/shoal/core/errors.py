"""The one sentence for bad input.

Everything a user can get wrong raises `InputError` with a sentence that says what was given, what is
allowed, and where. The command line prints that sentence and exits with code 2.
"""

import difflib
from collections.abc import Iterable


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


def require_instance(name: str, value: object, kind: type, how: str) -> None:
    """Raise `InputError` unless ``value`` is of ``kind``; ``how`` says how to make one.

    >>> require_instance("rounds", "3", int, "such as 30")
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'rounds' must be a whole number, such as 30; got '3'
    """
    fits = isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool)
    what = "a whole number" if kind is int else f"a {kind.__name__}"
    require(fits, f"'{name}' must be {what}, {how}; got {described(value)}")


def described(value: object) -> str:
    """A value in an error sentence: short ones as Python writes them, others by their type.

    >>> described(2.5), described([1, 2]), described(dict)
    ('2.5', 'list of 2', 'the class dict')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return f"{type(value).__name__} of {len(value)}" if isinstance(value, tuple | list) else type(value).__name__


def quoted(names: Iterable[str]) -> str:
    """Names in a sentence: ``'a', 'b'``."""
    return ", ".join(f"'{name}'" for name in names)


def nearest(word: str, known: Iterable[str], unlisted: Iterable[str] = ()) -> str:
    """A hint naming the known word closest to ``word``, or all known words but ``unlisted`` ones when none is close.

    >>> nearest("round", ["rounds", "clusters"])
    "did you mean 'rounds'?"
    >>> nearest("xyz", ["rounds", "clusters"])
    'known: clusters, rounds'
    """
    words = sorted(known)
    close = difflib.get_close_matches(word, sorted({*words, *unlisted}), n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(words)}"
