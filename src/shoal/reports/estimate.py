"""A figure with its 95 % interval, and what may be said of it: no sentence takes chance for a finding."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, inf, isnan, nan
from statistics import NormalDist
from typing import Any, Literal

from shoal.audit.records import at_once
from shoal.core.formats import DASH, decimal, percent
from shoal.metrics import clopper_pearson

OPEN_WIDTH = 0.2
"""An interval of the balanced accuracy that is wider leaves open how exposed records are."""

Outcome = Literal["open", "chance", "exposed"]

MOST_SEEDS = 100
"""More further seeds than these are not worth naming."""


def seeds_needed(effect: float, deviation: float, count: int = 1) -> float:
    """How many seeds show a true mean ``effect`` in four of five experiments: ((z_a + z_0.8) deviation / effect)^2.

    Two-sided, at 95 % for ``count`` such tests at once (a = 1 - 0.025 / count). Infinite without an effect.

    Args:
        effect: of either sign.
        deviation: the standard deviation over seeds.
        count: of tests.

    Source: the normal approximation in Cohen 1988, Statistical Power Analysis, chapter 2.

    >>> round(seeds_needed(0.02, 0.02), 1), seeds_needed(0.0, 0.02)
    (7.8, inf)
    """
    quantile = NormalDist().inv_cdf
    return ((quantile(1 - 0.025 / count) + quantile(0.8)) * deviation / effect) ** 2 if effect else inf


def at_chance(null_high: float) -> str:
    """How large a balanced accuracy is at chance; ``null_high`` is what 95 % of tests do not exceed there, or NaN.

    >>> at_chance(0.532)
    'chance: 0.500, where 95 % of tests of this size give at most 0.532'
    """
    tests = "" if isnan(null_high) else f", where 95 % of tests of this size give at most {decimal(null_high)}"
    return f"chance: 0.500{tests}"


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval; NaN where it was not measured."""

    value: float
    low: float = nan
    high: float = nan

    @staticmethod
    def of(metrics: Mapping[Any, Any], key: str) -> "Estimate":
        """The metric ``key`` with the interval in ``key_low`` and ``key_high``, or ``.low`` and ``.high``."""
        ends = ("", "_low", "_high") if f"{key}_low" in metrics else ("", ".low", ".high")
        return Estimate(*(metrics.get(f"{key}{end}", nan) for end in ends))

    @staticmethod
    def of_rate(rate: float, examples: float) -> "Estimate":
        """A share of so many examples with its exact interval (Clopper and Pearson); none of no examples.

        >>> Estimate.of_rate(0.5, 10).interval
        '0.187 to 0.813'
        """
        low, high = clopper_pearson(rate * examples, examples) if examples > 0 else (nan, nan)
        return Estimate(rate, float(low), float(high))

    def among(self, count: int) -> "Estimate":
        """The same with an interval that ``count`` such estimates keep at once (Bonferroni).

        The ends move away from the value as those of a normal distribution would.

        >>> Estimate(0.6, 0.5, 0.7).among(2).interval
        '0.486 to 0.714'
        """
        wider = at_once(count)
        return Estimate(
            self.value, self.value - wider * (self.value - self.low), self.value + wider * (self.high - self.value)
        )

    def minus(self, other: "Estimate") -> "Estimate":
        """The difference of two independent figures; too wide an interval where both are of the same records.

        Source: Newcombe 1998, Statistics in Medicine 17:873-890, method 10.

        >>> Estimate(0.7, 0.6, 0.8).minus(Estimate(0.5, 0.4, 0.6)).interval
        '0.059 to 0.341'
        """
        value = self.value - other.value
        below = hypot(self.value - self.low, other.high - other.value)
        return Estimate(value, value - below, value + hypot(self.high - self.value, other.value - other.low))

    def with_interval(self, *remarks: str) -> str:
        """The value, with its interval and ``remarks`` in brackets.

        >>> Estimate(0.6, 0.5, 0.7).with_interval("chance: 0.500"), Estimate(0.6).with_interval()
        ('0.600 (0.500 to 0.700; chance: 0.500)', '0.600')
        """
        brackets = "; ".join(filter(None, [self.interval, *remarks]))
        return f"{self.text} ({brackets})" if brackets else self.text

    @property
    def outcome(self) -> Outcome:
        """What a balanced accuracy says of exposure: "open" with too wide an interval, "chance" if 0.5 is in it."""
        # Written so that an interval of NaN, of which nothing is known, is open.
        if not self.high - self.low <= OPEN_WIDTH:
            return "open"
        return "exposed" if self.low > 0.5 else "chance"

    @property
    def known(self) -> bool:
        """Whether it was measured."""
        return not isnan(self.value)

    @property
    def text(self) -> str:
        """The value to three decimals; a dash where there is none."""
        return decimal(self.value) if self.known else DASH

    @property
    def percent(self) -> str:
        """The value as a percentage; a dash where there is none."""
        return percent(self.value) if self.known else DASH

    @property
    def interval(self) -> str:
        """Its ends to three decimals; empty where there are none."""
        return "" if isnan(self.low + self.high) else f"{decimal(self.low)} to {decimal(self.high)}"

    @property
    def percent_interval(self) -> str:
        """Its ends as percentages; empty where there are none.

        >>> Estimate(0.12, 0.081, 0.17).percent_interval
        '8.1 to 17.0 %'
        """
        return "" if isnan(self.low + self.high) else f"{100 * self.low:.1f} to {percent(self.high)}"
