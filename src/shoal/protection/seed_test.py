"""A sequential test of mean exposures over seeds, which may stop as soon as it decides.

The exposure of a group on seed s is ``mu + b_s + e_s``: the mean over seeds, the seed's effect on training, and the
sampling error from the finite number of records. The sums ``b_s + e_s`` are independent between seeds. The test assumes
normal sums with an unknown variance. A distribution-free interval for figures in [0, 1] would need more than fifty
seeds.

The test computes an interval after n_1 < ... < n_L seeds:

    mean -+ t(n - 1; 1 - level n / (n_1 + ... + n_L)) max(s, w) / sqrt(n)

Each end of the interval is wrong with probability at most ``level n / (n_1 + ... + n_L)`` (Student), and with
probability at most ``level`` over all intervals (Bonferroni). Later intervals have a larger fraction of the level,
because Student's t is narrower with more seeds. The test may stop after any interval for any reason. ``s`` is the
standard deviation over seeds. ``w`` is the standard deviation over records within a run, from the interval of each
run's figure. The maximum of ``s`` and ``w`` prevents decisions from few records whose figures agree by chance.

All groups together are within the limit if each group's upper end is within the limit. Upper ends need no correction
for the number of groups, because only an error about a group above the limit can cause a wrong decision. One group
above the limit decides "above", so the lower end of each of G groups gets 1 / G of the level.

Source: repeated confidence intervals, Jennison and Turnbull 1989, JRSS B 51:305-361, with a Bonferroni boundary.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, sqrt
from statistics import fmean, stdev

from scipy.special import stdtrit

from shoal.metrics.intervals import Estimate

LEVEL = 0.05
"""The largest probability that a search accepts a federation above the limit."""

FIRST_LOOK = 3
"""The number of seeds before the first interval; with two seeds, Student's t is too wide to decide."""


@dataclass(frozen=True)
class SeedTest:
    """Confidence intervals of mean exposures that hold simultaneously for all numbers of seeds.

    Args:
        most: the largest number of seeds, at least 2.
        level: the error probability of each interval end over all numbers of seeds.

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
        """The numbers of seeds after which an interval is computed; each number is about 1.5 times the previous one."""
        numbers, seeds = list[int](), FIRST_LOOK
        while seeds < self.most:
            numbers.append(seeds)
            seeds = ceil(seeds * 1.5)
        return (*numbers, self.most)

    def estimates(self, values: Mapping[str, Sequence[float]], within: Mapping[str, float]) -> dict[str, Estimate]:
        """Return the mean and interval of each group.

        Args:
            values: the figures of n seeds, by group.
            within: the standard deviation of one run's figure over its records, by group.
        """
        return {group: self._estimate(figures, within[group], len(values)) for group, figures in values.items()}

    def _estimate(self, values: Sequence[float], within: float, groups: int) -> Estimate:
        mean, error = fmean(values), max(stdev(values), within) / sqrt(len(values))
        below, above = self._quantile(len(values), groups) * error, self._quantile(len(values)) * error
        return Estimate(mean, max(mean - below, 0.0), min(mean + above, 1.0))

    def may_decide(self, gap: float, deviation: float) -> bool:
        """Return whether all seeds could show that a mean is within the limit, if the mean is ``gap`` below the limit.

        Args:
            deviation: the standard deviation of one seed's figure.
        """
        return self._quantile(self.most) * deviation < gap * sqrt(self.most)

    def _quantile(self, seeds: int, groups: int = 1) -> float:
        return float(stdtrit(seeds - 1, 1 - self.level * seeds / (sum(self.looks) * groups)))
