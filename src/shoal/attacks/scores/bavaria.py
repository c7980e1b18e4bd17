"""The BaVarIA attack: a likelihood-ratio attack with Bayesian variances, for few reference models.

Source: Brannvall 2026, arXiv:2603.11799 (BaVarIA with Student-t predictive distributions); Murphy 2007, Conjugate
Bayesian analysis of the Gaussian distribution, section 6 (update of the normal-inverse-gamma distribution).
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
"""The largest weight of a prior, as a number of scores; reached if all records have the same mean or variance."""


@dataclass(frozen=True)
class Prior:
    """A normal-inverse-gamma prior: variance ~ inverse-gamma(a0, b0) and mean ~ N(m0, variance / k0).

    Args:
        mean: m0.
        strength: k0.
        shape: a0.
        scale: b0.
    """

    mean: float
    strength: float
    shape: float
    scale: float


@settings
class BaVarIA:
    """The log density of a record's score given its IN scores, minus the log density given its OUT scores.

    Each density is the Student-t predictive distribution of the next IN or OUT score. A normal-inverse-gamma prior is
    fitted on the IN scores of all records, and another on the OUT scores. For a record without IN scores, the attack
    shifts the OUT scores as `LiRA` does, and vice versa. If a record's IN scores are all equal and its OUT scores are
    all equal, the attack counts R / 2 scores of each kind for R reference models, because the real counts would
    reveal membership.

    Difference from the paper: the fit of the prior (`fit_prior`).
    """

    name: ClassVar[str] = "bavaria"
    title: ClassVar[str] = "BaVarIA"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 3

    def scores(self, records: ReferenceScores) -> Floats:
        """Return the log-likelihood ratio of each record in nats, (M,); a positive ratio means more likely a member."""
        if not len(records):
            return np.empty(0)
        squares = sum(side.squares for side in in_and_out(self, records, needs_in=True))
        equal_count = np.where(squares == 0, records.references / 2, np.nan)
        return log_ratio(self, records, partial(_log_predictive, records.score, equal_count))


def fit_prior(side: Side, variance: float) -> Prior:
    """Fit the prior of the IN scores or the OUT scores by the method of moments.

    The prior mean m0 is the mean of the records' means. With s the pooled ``variance``, k0 = s / t, where t is the
    variance of the records' means minus the mean sampling variance of a record's mean. With q the variance of the
    records' true variances, a0 = 2 + s^2 / q and b0 = s (a0 - 1). The estimate of q uses E v^2 = E variance^2 (n + 1) /
    (n - 1) for the sample variance v of n scores. The values k0 and a0 are at most `LARGEST`.
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

    ``equal_count`` (M,) replaces the number of scores on the side, except where ``equal_count`` is NaN.
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
