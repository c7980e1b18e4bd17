"""Algorithms, attacks, defences and data sources that installed packages add through entry points.

A package declares an added name in its pyproject.toml::

    [project.entry-points."shoal.algorithms"]
    sticky-ifca = "sticky_ifca:StickyIFCA"

`GROUPS` lists the entry-point groups. Shoal's own names are in tables such as `shoal.algorithms.ALGORITHMS`.
"""

import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from shoal.core.errors import InputError

GROUPS = ("shoal.algorithms", "shoal.attacks", "shoal.defenses", "shoal.sources")


def installed_names(group: str, shipped: Iterable[str] = ()) -> dict[str, str]:
    """Return the names that installed packages add to a group, each with its ``module:Name``.

    Args:
        group: the entry-point group; a group outside `GROUPS` has no names.
        shipped: Shoal's own names in the group.

    Raises:
        InputError: two packages, or Shoal and a package, define the same name.
    """
    owners, names = dict.fromkeys(shipped, "shoal"), {}
    for point in _points(tuple(sys.path)).get(group, ()):
        owner = point.dist.name if point.dist else point.value
        if point.name in owners:
            raise InputError(
                f"the packages '{owners[point.name]}' and '{owner}' both define '{point.name}' in the group '{group}'; "
                "uninstall one of them"
            )
        owners[point.name], names[point.name] = owner, point.value
    return names


@cache
def _points(_path: tuple[str, ...]) -> dict[str, list[EntryPoint]]:
    """Return all groups' entry points by name at once, because reading every package's metadata takes 10 ms."""
    everything = entry_points()
    return {group: sorted(everything.select(group=group), key=lambda point: point.name) for group in GROUPS}
