"""The one sentence for bad input.

Everything a user can get wrong raises `InputError` with a sentence that says what was given, what is
allowed, and where. The command line prints that sentence and exits with code 2.
"""

import difflib
from collections.abc import Iterable


class ShoalError(Exception):
    """Something went wrong that is not a defect of Shoal; the text is one sentence for its user."""


class InputError(ShoalError, ValueError):
    """The user's input cannot be used: a config value, a file, a tensor."""


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


def quoted(names: Iterable[str]) -> str:
    """Names in a sentence: ``'a', 'b'``."""
    return ", ".join(f"'{name}'" for name in names)


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint naming the known word closest to ``word``, or all known words when none is close.

    >>> nearest("round", ["rounds", "clusters"])
    "did you mean 'rounds'?"
    >>> nearest("xyz", ["rounds", "clusters"])
    'known: clusters, rounds'
    """
    words = sorted(known)
    close = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    return f"did you mean '{close[0]}'?" if close else f"known: {', '.join(words)}"
