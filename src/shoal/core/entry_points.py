"""Names that installed packages add to Shoal's own, by entry points.

Shoal's own names stand in plain tables (`shoal.algorithms.ALGORITHMS`), which a checkout has without being installed
again. A package adds one in its pyproject.toml::

    [project.entry-points."shoal.algorithms"]
    sticky-ifca = "sticky_ifca:StickyIFCA"

The groups are ``shoal.algorithms``, ``shoal.attacks``, ``shoal.defenses`` and ``shoal.sources``.
"""

import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoints, entry_points

from shoal.core.errors import InputError


def installed(group: str, shipped: Iterable[str] = ()) -> dict[str, str]:
    """The names that installed packages add to a group, each with its ``module:Name``.

    Args:
        group: of the entry points.
        shipped: Shoal's own names.

    Raises:
        InputError: two packages, or Shoal and another one, have the same name.
    """
    owners, names = dict.fromkeys(shipped, "shoal"), {}
    for point in sorted(_points(tuple(sys.path)).select(group=group), key=lambda point: point.name):
        owner = point.dist.name if point.dist else point.value
        if point.name in owners:
            raise InputError(
                f"the packages '{owners[point.name]}' and '{owner}' both call something '{point.name}' in the group "
                f"'{group}'; uninstall one of them"
            )
        owners[point.name], names[point.name] = owner, point.value
    return names


@cache
def _points(_path: tuple[str, ...]) -> EntryPoints:
    """The entry points of all groups: to read every package's metadata takes 10 ms, also for one group."""
    return entry_points()
