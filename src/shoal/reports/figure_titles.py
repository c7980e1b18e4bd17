"""Values with their names in titles of figures."""

from collections.abc import Callable, Mapping, Sequence

from shoal.core.formats import decimal

MOST_NAMED = 3
"""Names and values in a title: of more, how many they are and their range."""


def by_name(values: Mapping[str, float], form: Callable[[float], str] = decimal) -> str:
    """Values with their names; of more than `MOST_NAMED` their span.

    >>> by_name({"a": 0.5, "b": 0.7}), by_name(dict(zip("abcd", (0.5, 0.7, 0.6, 0.6))))
    ('0.500 (a), 0.700 (b)', '0.500 to 0.700')
    """
    if len(values) > MOST_NAMED:
        return span([*values.values()], form)
    return ", ".join(f"{form(value)} ({name})" for name, value in values.items())


def span(values: Sequence[float], form: Callable[[float], str] = decimal) -> str:
    """The least and the largest; one where they read the same."""
    return " to ".join(dict.fromkeys(form(end) for end in (min(values), max(values))))
