"""A test of mean exposures over seeds that may stop as soon as it is decided.

The exposure of a group on seed s is ``mu + b_s + e_s``: the mean over seeds, the seed's effect on training, and the
effect of the finite number of records on the figure. The sums ``b_s + e_s`` are independent between seeds. They are
taken to be normal, with an unknown variance, because a figure of one run is a mean over records. An interval for any
distribution in [0, 1] would need more than fifty seeds.

The figures are looked at after n_1 < ... < n_L seeds. At each look the ends of the interval

    mean -+ t(n - 1; 1 - level n / (n_1 + ... + n_L)) max(s, w) / sqrt(n)

are each wrong in at most ``level n / (n_1 + ... + n_L)`` of all cases (Student), so over all looks in at most ``level``
of them (Bonferroni). Late looks, where Student's t is narrow, have more of the level. Therefore the test may stop at
any look, for any reason, and look again after more seeds. ``s`` is the standard deviation over seeds. ``w`` is that of
records within a run, by the interval of each run's figure. ``s`` has both sources of error, and ``w`` one of them, so
the larger of the two only widens the interval. It prevents decisions from few records whose figures agree by chance.

All groups together are within the limit if each group's upper end is. If one group is above the limit, only an error
about this group can give "within", so upper ends need no correction for the number of groups. One group above the limit
is enough for "above", so each of the lower ends of G groups gets 1 / G of the level.

Source: repeated confidence intervals, Jennison and Turnbull 1989, JRSS B 51:305-361, with a Bonferroni boundary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import fmean, stdev

from scipy.special import stdtrit

from shoal.metrics.intervals import Estimate

LEVEL = 0.05
"""How often, at most, a search says "within the limit" of a federation that is above it."""

FIRST_LOOK = 3
"""Seeds before the first look. With two seeds Student's t is too wide to decide."""


@dataclass(frozen=True)
class SeedTest:
    """Intervals of mean exposures that hold at all looks at once.

    Args:
        most: the largest number of seeds, at least 2.
        level: the error probability of each end, over all looks.

    Example:
        >>> from shoal.protection.seed_test import SeedTest
        >>> test = SeedTest(most=8, level=0.05)
        >>> test.looks
        (3, 5, 8)
        >>> test.estimates({"north": [0.51, 0.52, 0.53]}, {"north": 0.0})["north"].interval
        '0.478 to 0.562'
    """

    most: int
    level: float = LEVEL

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of seeds at which the figures are looked at: half as many more each time."""
        numbers, seeds = list[int](), FIRST_LOOK
        while seeds < self.most:
            numbers.append(seeds)
            seeds = ceil(seeds * 1.5)
        return (*numbers, self.most)

    def estimates(self, values: Mapping[str, Sequence[float]], within: Mapping[str, float]) -> dict[str, Estimate]:
        """Return the mean and interval of each group.

        Args:
            values: figures of n seeds, by group.
            within: the standard deviation of one run's figure over its records, by group.
        """
        return {group: self._estimate(figures, within[group], len(values)) for group, figures in values.items()}

    def _estimate(self, values: Sequence[float], within: float, groups: int) -> Estimate:
        mean, error = fmean(values), max(stdev(values), within) / sqrt(len(values))
        below, above = self._quantile(len(values), groups) * error, self._quantile(len(values)) * error
        return Estimate(mean, max(mean - below, 0.0), min(mean + above, 1.0))

    def may_decide(self, gap: float, deviation: float) -> bool:
        """Return whether all seeds would show a mean that is ``gap`` below the limit to be within it."""
        return self._quantile(self.most) * deviation < gap * sqrt(self.most)

    def _quantile(self, seeds: int, groups: int = 1) -> float:
        return float(stdtrit(seeds - 1, 1 - self.level * seeds / (sum(self.looks) * groups)))
