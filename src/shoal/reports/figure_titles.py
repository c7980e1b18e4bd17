"""Titles of figures that state a finding: an order is named only where intervals hold it, and all of them at once."""

from collections.abc import Callable, Mapping, Sequence

from shoal.core.formats import capitalized, decimal, listed
from shoal.reports.estimate import Estimate

MOST_NAMED = 3
"""Names and values in a title: of more, how many they are and their range."""


def exposure_title(found: Mapping[str, Estimate], kind: str, *, looked: int = 0, metric: str = "") -> str:
    """Who finds members, by figures of which 0.5 is chance, with the intervals that all keep at once.

    One finds most where its interval lies above all others.

    Args:
        found: the figures by name; at least one.
        kind: what they are of, such as "attack".
        looked: how many figures these are the largest of, if more than there are.
        metric: what the figures are; "": nothing is said.

    >>> far = {"LiRA": Estimate(0.7, 0.65, 0.75), "gap": Estimate(0.52, 0.48, 0.56)}
    >>> exposure_title(far, "attack")
    'LiRA finds most: 0.700 (0.643 to 0.757)'
    >>> exposure_title(far | {"gap": Estimate(0.66, 0.61, 0.71)}, "attack")
    'LiRA and gap are above chance: 0.660 to 0.700; which finds most is open'
    """
    wide = {name: one.among(max(looked, len(found))) for name, one in found.items()}
    shown = {name: one for name, one in wide.items() if one.low > 0.5}
    largest = max(wide.values(), key=lambda one: one.value)
    said = f": {metric} " if metric else ": "
    if not shown:
        most = "at most " * (len(wide) > 1)
        return f"No {kind} is shown to be above chance{said}{most}{largest.with_interval()}"
    leader = max(shown, key=lambda name: shown[name].value)
    ahead = len(wide) > 1 and all(shown[leader].low > one.high for name, one in wide.items() if name != leader)
    if ahead or len(shown) == 1:
        does = "finds most" if ahead else "is above chance"
        return f"{capitalized(leader)} {does}{said}{shown[leader].with_interval()}"
    who = f"{len(shown)} of {len(wide)} {kind}s"
    if len(shown) <= MOST_NAMED:
        who = capitalized(listed([*shown]))
    return f"{who} are above chance{said}{span([one.value for one in shown.values()])}; which finds most is open"


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
