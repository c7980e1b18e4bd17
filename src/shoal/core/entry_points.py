"""Names that installed packages add to Shoal's own, by entry points.

Shoal's own names stand in plain tables (`shoal.algorithms.ALGORITHMS`), which a checkout has without being installed
again. A package adds one in its pyproject.toml::

    [project.entry-points."shoal.algorithms"]
    sticky-ifca = "sticky_ifca:StickyIFCA"

The groups are those of `GROUPS`.
"""

import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from shoal.core.errors import InputError

GROUPS = ("shoal.algorithms", "shoal.attacks", "shoal.defenses", "shoal.sources")


def installed_names(group: str, shipped: Iterable[str] = ()) -> dict[str, str]:
    """The names that installed packages add to a group, each with its ``module:Name``.

    Args:
        group: one of `GROUPS`; another has no names.
        shipped: Shoal's own names.

    Raises:
        InputError: two packages, or Shoal and another one, have the same name.
    """
    owners, names = dict.fromkeys(shipped, "shoal"), {}
    for point in _points(tuple(sys.path)).get(group, ()):
        owner = point.dist.name if point.dist else point.value
        if point.name in owners:
            raise InputError(
                f"the packages '{owners[point.name]}' and '{owner}' both call something '{point.name}' in the group "
                f"'{group}'; uninstall one of them"
            )
        owners[point.name], names[point.name] = owner, point.value
    return names


@cache
def _points(_path: tuple[str, ...]) -> dict[str, list[EntryPoint]]:
    """The entry points of each group by name. All groups at once: reading every package's metadata takes 10 ms."""
    everything = entry_points()
    return {group: sorted(everything.select(group=group), key=lambda point: point.name) for group in GROUPS}
