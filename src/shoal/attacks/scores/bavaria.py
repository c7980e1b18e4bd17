"""The likelihood-ratio attack with a Bayesian estimate of each record's distributions, for few reference models.

Source: Brannvall 2026, arXiv:2603.11799 (BaVarIA with Student-t predictive distributions); the normal-inverse-gamma
distribution's update as in Murphy 2007, Conjugate Bayesian analysis of the Gaussian distribution, section 6.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from shoal.attacks.reference_scores import ReferenceScores
from shoal.attacks.scores.in_and_out import Side, in_and_out, log_ratio
from shoal.core.settings import settings
from shoal.data.preferences import View
from shoal.metrics.intervals import Floats

LARGEST = 1e3
"""Largest weight of a prior, in scores, where records do not differ in mean or variance."""


@dataclass(frozen=True)
class Prior:
    """The prior of a record's mean ~ N(m0, variance / k0) and variance ~ inverse-gamma(a0, b0), as (m0, k0, a0, b0)."""

    mean: float
    strength: float
    shape: float
    scale: float


@settings
class BaVarIA:
    """The log density of a record's score given its IN scores, minus that given its OUT scores.

    Each density is the Student-t distribution of the next score of a side, with a prior of mean and variance fitted on
    all records of the side. With few scores its variance is nearly the pooled variance, with many the record's own.
    Records without IN (or OUT) scores are treated as in `LiRA`. A record with equal scores on each side counts R / 2
    scores per side: unequal counts alone would separate the densities, and can depend on membership.

    The prior is ours (`fit_prior`); the paper's was not at hand.
    """

    name: ClassVar[str] = "bavaria"
    title: ClassVar[str] = "BaVarIA"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 3

    def scores(self, records: ReferenceScores) -> Floats:
        """Return the ratios (M,) in nats; above 0 a record is more likely a member."""
        if not len(records):
            return np.empty(0)
        squares = sum(side.squares for side in in_and_out(self, records, needs_in=True))
        equal_count = np.where(squares == 0, records.references / 2, np.nan)
        return log_ratio(self, records, partial(_log_predictive, records.score, equal_count))


def fit_prior(side: Side, variance: float) -> Prior:
    """Fit the prior of one side by the moments of its records.

    With the pooled ``variance`` s: m0 is the mean of the records' means; k0 = s / t, where t is the variance of these
    means less what their few scores add to it; a0 = 2 + s^2 / (variance of the records' true variances), as the
    moments of an inverse-gamma distribution say, and b0 = s (a0 - 1). Sample variances v of n scores overstate that:
    E v^2 = E variance^2 (n + 1) / (n - 1). k0 and a0 are at most `LARGEST`.
    """
    means = side.mean[side.observed]
    added = variance * (1 / side.count[side.observed]).mean()
    between = max(float(means.var(ddof=1)) - added, variance / LARGEST) if len(means) > 1 else variance / LARGEST
    several = side.freedom > 0
    freedom = side.freedom[several]
    spread = 0.0
    if several.any():
        # Weighted by the degrees of freedom, as the pooled variance is.
        squared = (side.squares[several] / freedom) ** 2 * freedom / (freedom + 2)
        spread = float(np.average(squared, weights=freedom)) / variance**2 - 1
    shape = 2 + 1 / max(spread, 1 / (LARGEST - 2))
    return Prior(float(means.mean()), variance / between, shape, variance * (shape - 1))


def _log_predictive(x: Floats, equal_count: Floats, side: Side, pooled: float) -> Floats:
    """Return the log density (M,) of x: Student-t with 2 a_n degrees of freedom around m_n.

    ``equal_count`` (M,) is the number of scores to count; NaN: the number of scores on the side.
    """
    from scipy.special import gammaln  # noqa: PLC0415 - only this attack needs scipy

    n = np.where(np.isnan(equal_count), side.count, equal_count)
    prior, mean = fit_prior(side, pooled), side.mean
    strength, shape = prior.strength + n, prior.shape + n / 2
    centre = (prior.strength * prior.mean + n * mean) / strength
    scale = prior.scale + side.squares / 2 + prior.strength * n * (mean - prior.mean) ** 2 / (2 * strength)
    width = scale * (strength + 1) / (shape * strength)
    normaliser = gammaln(shape + 0.5) - gammaln(shape) - 0.5 * np.log(2 * np.pi * shape * width)
    return normaliser - (shape + 0.5) * np.log1p((x - centre) ** 2 / (2 * shape * width))
