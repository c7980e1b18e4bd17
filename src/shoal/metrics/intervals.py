"""Two-sided confidence intervals of rates, of the balanced accuracy and of the area under a ROC curve.

Weighted examples count with their `effective_size`, and have approximate intervals.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from math import hypot, isnan, nan
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, stdtrit

from shoal.core.formats import DASH, decimal

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

Verdict = Literal["exposed", "above the limit", "not decided", "within the limit", "at chance"]

AT_CHANCE = 0.6
"""The largest upper end of an interval with the verdict "at chance"."""


class Estimate(NamedTuple):
    """A value with its 95 % interval, or NaN if not measured."""

    value: float = nan
    low: float = nan
    high: float = nan

    @staticmethod
    def of(metrics: Mapping[Any, Any], key: str) -> "Estimate":
        """Read the metric ``key`` and its interval, whose ends have keys with the suffix ``_low`` or ``.low``."""
        ends = ("", "_low", "_high") if f"{key}_low" in metrics else ("", ".low", ".high")
        return Estimate(*(metrics.get(f"{key}{end}", nan) for end in ends))

    @staticmethod
    def of_rate(rate: float, examples: float) -> "Estimate":
        """Return a rate with its exact interval (Clopper and Pearson); the interval is NaN without examples.

        >>> Estimate.of_rate(0.5, 10).interval
        '0.187 to 0.813'
        """
        low, high = clopper_pearson(rate * examples, examples) if examples > 0 else (nan, nan)
        return Estimate(rate, float(low), float(high))

    def among(self, count: int) -> "Estimate":
        """Widen the interval to one of ``count`` simultaneous intervals (Bonferroni, normal approximation).

        >>> Estimate(0.6, 0.5, 0.7).among(2).interval, Estimate(0.95, 0.9, 0.99).among(9).interval
        ('0.486 to 0.714', '0.879 to 1.000')
        """
        wider = at_once(count)
        low, high = self.value - wider * (self.value - self.low), self.value + wider * (self.high - self.value)
        # NaN stays: it is the first argument.
        return Estimate(self.value, max(low, 0.0), min(high, 1.0))

    def minus(self, other: "Estimate") -> "Estimate":
        """Subtract an independent estimate.

        Source: Newcombe 1998, Statistics in Medicine 17:873-890, method 10.

        >>> Estimate(0.7, 0.6, 0.8).minus(Estimate(0.5, 0.4, 0.6)).interval
        '0.059 to 0.341'
        """
        value = self.value - other.value
        below = hypot(self.value - self.low, other.high - other.value)
        return Estimate(value, value - below, value + hypot(self.high - self.value, other.value - other.low))

    @property
    def verdict(self) -> Verdict:
        """The verdict on a balanced accuracy or an AUC, with chance at 0.5; see `AT_CHANCE`.

        >>> [Estimate(0.55, *ends).verdict for ends in ((0.51, 0.59), (0.49, 0.6), (0.45, 0.7), (nan, nan))]
        ['exposed', 'at chance', 'not decided', 'not decided']
        """
        if self.low > 0.5:
            return "exposed"
        return "at chance" if self.high <= AT_CHANCE else "not decided"

    def against(self, limit: float) -> Verdict:
        """Compare the interval with a limit.

        >>> [Estimate(0.55, *ends).against(0.6) for ends in ((0.5, 0.6), (0.5, 0.61), (0.61, 0.7), (nan, nan))]
        ['within the limit', 'not decided', 'above the limit', 'not decided']
        """
        if self.low > limit:
            return "above the limit"
        return "within the limit" if self.high <= limit else "not decided"

    @property
    def known(self) -> bool:
        """Whether the value was measured."""
        return not isnan(self.value)

    @property
    def text(self) -> str:
        """The value with three decimals, or a dash if not measured."""
        return decimal(self.value) if self.known else DASH

    @property
    def interval(self) -> str:
        """The ends of the interval with three decimals, or an empty string."""
        return "" if isnan(self.low + self.high) else f"{decimal(self.low)} to {decimal(self.high)}"

    @property
    def figure(self) -> str:
        """The value with its interval in brackets.

        >>> Estimate(0.6, 0.5, 0.7).figure, Estimate(0.6).figure
        ('0.600 (0.500 to 0.700)', '0.600')
        """
        return f"{self.text} ({self.interval})" if self.interval else self.text


def at_once(count: int, tail: float = 0.025) -> float:
    """Return the factor that widens ``count`` 95 % intervals to hold simultaneously (Bonferroni, normal approximation).

    Args:
        tail: the error probability on each side, for all intervals together.

    >>> round(at_once(1), 2), round(at_once(8), 2)
    (1.0, 1.4)
    """
    quantile = NormalDist().inv_cdf
    return quantile(1 - tail / max(1, count)) / quantile(0.975)


def effective_size(weights: Floats) -> float:
    """Return the effective sample size of weighted examples, (sum w)^2 / sum w^2 (Kish 1965).

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import effective_size
        >>> effective_size(np.array([1.0, 1.0, 0.0])), effective_size(np.array([3.0, 1.0]))
        (2.0, 1.6)
    """
    return float(weights.sum() ** 2 / (weights**2).sum())


def clopper_pearson(successes: ArrayLike, trials: ArrayLike, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """Compute exact confidence intervals of rates.

    Source: Clopper and Pearson 1934, Biometrika 26:404-413.

    Args:
        successes: the numbers of successes, of any shape; non-integers are allowed for weighted examples.
        trials: the numbers of trials, in the shape of ``successes``; 0 trials have the interval [0, 1].

    Example:
        >>> from shoal.metrics import clopper_pearson
        >>> low, high = clopper_pearson([0, 5], [10, 10])
        >>> low.round(3), high.round(3)
        (array([0.   , 0.187]), array([0.308, 0.813]))
    """
    n = np.asarray(trials, dtype=np.float64)
    k = np.clip(np.asarray(successes, dtype=np.float64), 0, n)
    tail = (1 - confidence) / 2
    low = np.where(k > 0, betaincinv(np.where(k > 0, k, 1), n - k + 1, tail), 0.0)
    high = np.where(k < n, betaincinv(k + 1, np.where(k < n, n - k, 1), 1 - tail), 1.0)
    return low, high


def balanced_accuracy_interval(
    predictions: Bools,
    is_member: Bools,
    weights: Floats | None = None,
    confidence: float = 0.95,
    *,
    correlation: float = 0.0,
) -> tuple[float, float]:
    """Compute a confidence interval of the balanced accuracy by `mean_rate_interval`.

    Args:
        predictions: whether the attack predicts a member, (M,).
        is_member: whether the record is a member, (M,).
        weights: the examples' weights, (M,), or ``None`` for equal weights.
        correlation: the correlation of an attack's errors on the member and the non-member of a pair.
    """
    weights = np.ones(len(is_member)) if weights is None else weights
    both = [(predictions, is_member), (~predictions, ~is_member)]
    rates = [float(np.average(right[kind], weights=weights[kind])) for right, kind in both]
    return mean_rate_interval(rates, [effective_size(weights[kind]) for _, kind in both], confidence, correlation)


def mean_rate_interval(
    rates: Sequence[float], sizes: Sequence[float], confidence: float = 0.95, correlation: float = 0.0
) -> tuple[float, float]:
    """Compute a confidence interval of the mean of G rates.

    The interval combines the distances d_g between each rate and the ends of the rate's exact interval. Each end
    differs from the mean by sqrt((1 - correlation) (d_1^2 + ... + d_G^2) + correlation (d_1 + ... + d_G)^2) / G.

    Source: Newcombe 1998, Statistics in Medicine 17:873-890, method 10, and 17:2635-2650 for pairs.
    `mean_rate_interval` uses exact limits instead of Wilson's, and a mean instead of a difference.

    Args:
        sizes: the effective number of examples for each rate.
        correlation: the correlation of any two rates' errors; 0 means independent errors.

    Example:
        >>> from shoal.metrics import mean_rate_interval
        >>> [round(limit, 3) for limit in mean_rate_interval([0.5, 0.8, 0.9], [20, 20, 20])]
        [0.602, 0.828]
    """
    below, above = list[float](), list[float]()
    for rate, n in zip(rates, sizes, strict=True):
        low, high = clopper_pearson(rate * n, n, confidence)
        below.append(rate - float(low))
        above.append(float(high) - rate)
    mean = sum(rates) / len(rates)
    return mean - _add_errors(below, correlation) / len(rates), mean + _add_errors(above, correlation) / len(rates)


def _add_errors(distances: Sequence[float], correlation: float) -> float:
    squares = sum(distance * distance for distance in distances)
    return math.sqrt(max(0.0, (1 - correlation) * squares + correlation * sum(distances) ** 2))


def mean_interval(values: Floats, confidence: float = 0.95) -> tuple[float, float]:
    """Compute a confidence interval of the mean of ``values`` (m,) by Student's t, or NaN for one value."""
    if len(values) < 2:
        return float("nan"), float("nan")
    half = float(stdtrit(len(values) - 1, 0.5 + confidence / 2) * values.std(ddof=1) / np.sqrt(len(values)))
    return float(values.mean()) - half, float(values.mean()) + half


def auc_interval(auc: float, members: float, non_members: float, confidence: float = 0.95) -> tuple[float, float]:
    """Compute a confidence interval of an area under a ROC curve, by Hanley and McNeil's variance.

    The interval contains the areas t with ``|auc - t| <= z sqrt(V(t))``, where V is the variance for the true area t.

    Args:
        members, non_members: the effective numbers of members and of non-members.

    Source: Newcombe 2006, Statistics in Medicine 25:559-573, method 5; Hanley and McNeil 1982, Radiology 143:29-36.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    half = (members + non_members) / 2 - 1

    def inside(area: float) -> bool:
        variance = 1 + half * ((1 - area) / (2 - area) + area / (1 + area))
        return (auc - area) ** 2 <= z * z * area * (1 - area) * variance / (members * non_members)

    return _last(inside, auc, 0.0), _last(inside, auc, 1.0)


def auc_design_effect(members: Floats, non_members: Floats) -> float:
    """Return the ratio between the AUC's variances for paired and for independent examples.

    V_q is the fraction of non-members below member q, and W_q the fraction of members above non-member q; ties count
    half. The ratio is Var(V + W) / (Var V + Var W), at least 1 / Q, times (t / z)^2, or 1 if all scores are equal. The
    97.5 % quantiles t (Student's, with Q - 1 degrees of freedom) and z (normal) allow for the error of the estimated
    ratio.

    Source: Obuchowski 1997, Biometrics 53:567-578, with a pair as a cluster; DeLong, DeLong, Clarke-Pearson 1988.

    Args:
        members, non_members: the scores of the members and of the non-members, both in the order of pairs, (Q,).
    """

    def below(x: Floats, ordered: Floats) -> Floats:
        return (np.searchsorted(ordered, x) + np.searchsorted(ordered, x, side="right")) / (2 * len(ordered))

    if len(members) < 2:
        return 1.0
    above = -below(non_members, np.sort(members))
    placed = below(members, np.sort(non_members))
    independent = placed.var() + above.var()
    if independent == 0:
        return 1.0
    quantiles = float(stdtrit(len(members) - 1, 0.975)) / NormalDist().inv_cdf(0.975)
    return max(float((placed + above).var() / independent), 1 / len(members)) * quantiles**2


def _last(inside: Callable[[float], bool], start: float, end: float) -> float:
    """Find the last point from ``start`` towards ``end`` where ``inside`` holds, by bisection."""
    if inside(end):
        return end
    for _ in range(60):
        middle = (start + end) / 2
        start, end = (middle, end) if inside(middle) else (start, middle)
    return start
