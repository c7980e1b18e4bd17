"""Titles of figures that state a finding: an order is named only where intervals hold it, and all of them at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from shoal.core.formats import capitalized, decimal
from shoal.reports.estimate import Estimate

MOST_NAMED = 3
"""Names and values in a title: of more, how many they are and their range."""


class Words(NamedTuple):
    """What a title says: of nobody, of the one who is ahead, of one alone or several, and of their open order."""

    nobody: str
    ahead: str
    one: str
    several: str
    which: str


VIEWS = Words(
    "Nobody is shown to recognise records",
    "recognises most",
    "recognises records",
    "views recognise records",
    "who most",
)
ATTACKS = Words(
    "No attack is shown to be above chance",
    "finds most",
    "is above chance",
    "attacks are above chance",
    "which finds most",
)


def exposure_title(found: Mapping[str, Estimate], words: Words, *, looked: int = 0, metric: str = "") -> str:
    """Who is exposed, or exposes, by figures of which 0.5 is chance, with the intervals that all keep at once.

    One is ahead where its interval lies above all others.

    Args:
        found: the figures by name; at least one.
        words: of the title.
        looked: how many figures these are the largest of, if more than there are.
        metric: what the figures are, before the first; "": nothing.

    >>> far = {"LiRA": Estimate(0.7, 0.65, 0.75), "gap": Estimate(0.52, 0.48, 0.56)}
    >>> exposure_title(far, ATTACKS)
    'LiRA finds most: 0.700 (0.643 to 0.757)'
    >>> exposure_title(far | {"gap": Estimate(0.66, 0.61, 0.71)}, ATTACKS)
    'LiRA and gap are above chance: 0.660 to 0.700; which finds most is open'
    """
    wide = {name: one.among(max(looked, len(found))) for name, one in found.items()}
    shown = {name: one for name, one in wide.items() if one.low > 0.5}
    largest = max(wide.values(), key=lambda one: one.value)
    said = f": {metric} " if metric else ": "
    if not shown:
        return f"{words.nobody}{said}{'at most ' * (len(wide) > 1)}{largest.with_interval()}"
    leader = max(shown, key=lambda name: shown[name].value)
    ahead = len(wide) > 1 and all(shown[leader].low > one.high for name, one in wide.items() if name != leader)
    if ahead or len(shown) == 1:
        return f"{capitalized(leader)} {words.ahead if ahead else words.one}{said}{shown[leader].with_interval()}"
    who = f"{len(shown)} of {len(wide)} {words.several}"
    if len(shown) <= MOST_NAMED:
        who = f"{capitalized(listed([*shown]))} {words.several.split(' ', 1)[1]}"
    return f"{who}{said}{span([one.value for one in shown.values()])}; {words.which} is open"


def listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


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
