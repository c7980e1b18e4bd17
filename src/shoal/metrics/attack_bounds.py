"""Bounds between differential privacy and the success of membership-inference attacks.

Differential privacy (add/remove) limits every test of whether a record was used for training. The balanced accuracy is
at most ``(1 + TV) / 2``, where TV is the total variation distance between the outputs with and without the record. The
AUC is at most the area above the trade-off curve. Both limits also hold for an attack on many records with one
threshold.

These limits do not apply to an attacker who knows that exactly one of two records was used. Replacing a record counts
as two changes: a Gaussian mechanism then has the limit of ``2 mu``.

The measured success of an attack gives a lower bound on epsilon.

Sources: Dong, Roth and Su, "Gaussian Differential Privacy", arXiv:1905.02383, sections 2.1 and 2.3; bound on epsilon:
Jagielski, Ullman, Oprea 2020, arXiv:2006.07709, section 3, and Nasr, Hayes, Steinke et al. 2023, arXiv:2302.07956,
section 2.
"""

import math
import warnings
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.metrics.intervals import Bools, Estimate, Floats, Ints, clopper_pearson

History = tuple[tuple[float, float, int], ...]
"""Steps of training, as triples (noise multiplier, sampling rate, number of steps)."""

_LOSS, _MASS = 0.01, 1e-6
"""The error of the discretised privacy loss, and the probability of a larger error; both are added to the limit."""

_CELLS = 1e7
"""The largest number of cells of the discretised privacy loss."""


class AttackBound(NamedTuple):
    """The largest balanced accuracy and AUC of any attack, in [0.5, 1]."""

    accuracy: float
    auc: float


def gaussian_bound(mu: float) -> AttackBound:
    """Return the exact bound for Gaussian mechanisms with ``mu^2 = sum (sensitivity / standard deviation)^2``.

    The bound on the balanced accuracy is ``Phi(mu / 2)``, and the bound on the AUC is ``Phi(mu / sqrt(2))``.

    >>> [round(float(value), 3) for value in (*gaussian_bound(0.0), *gaussian_bound(1.0), *gaussian_bound(math.inf))]
    [0.5, 0.5, 0.691, 0.76, 1.0, 1.0]
    """
    return AttackBound(float(ndtr(mu / 2)), float(ndtr(mu / math.sqrt(2))))


@lru_cache(maxsize=4096)
def compose_bound(history: History) -> AttackBound:
    """Return the bound for a composition of sampled Gaussian mechanisms.

    Args:
        history: the training steps. A sampling rate below 1 means Poisson sampling; its bound uses the privacy loss
            distribution of Gopi, Lee and Wutschitz, arXiv:2106.02848.

    >>> [round(value, 2) for value in compose_bound(((1.0, 0.05, 100), (1.0, 0.1, 50)))]
    [0.7, 0.77]
    """
    used = [part for part in history if part[2] > 0]
    if any(noise == 0 for noise, _, _ in used):
        return gaussian_bound(math.inf)
    whole = gaussian_bound(math.sqrt(sum(steps / noise**2 for noise, _, steps in used)))
    if all(rate == 1 for _, rate, _ in used):
        return whole
    sampled = _subsampling_bound(used)
    return AttackBound(min(whole.accuracy, sampled.accuracy), min(whole.auc, sampled.auc))


def _subsampling_bound(used: list[tuple[float, float, int]]) -> AttackBound:
    """Return the limit by the discretised privacy loss, or 1 if the computation needs too much memory."""
    # Imported here because it takes seconds.
    from opacus.accountants.analysis.prv import (  # noqa: PLC0415
        Domain,
        PoissonSubsampledGaussianPRV,
        TruncatedPrivacyRandomVariable,
        compose_heterogeneous,
        compute_safe_domain_size,
        discretize,
    )

    losses, steps = [PoissonSubsampledGaussianPRV(rate, noise) for noise, rate, _ in used], [part[2] for part in used]
    mesh = _LOSS / math.sqrt(sum(steps) * math.log(12 / _MASS) / 2)
    # At rate 1 Opacus takes the logarithm of 0, as is meant; it warns where a divergence is at the end of its orders.
    with np.errstate(divide="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        largest = compute_safe_domain_size(losses, steps, eps_error=_LOSS, delta_error=_MASS)
        if 2 * largest / mesh > _CELLS:
            return gaussian_bound(math.inf)
        domain = Domain.create_aligned(-largest, largest, mesh)
        cells = [
            discretize(TruncatedPrivacyRandomVariable(loss, domain.t_min, domain.t_max), domain) for loss in losses
        ]
        composed = compose_heterogeneous(cells, steps)
    # The probability of each privacy loss, from the largest on, where the record is used and where it is left out.
    with_record = composed.pmf.clip(min=0)[::-1]
    without = with_record * np.exp(-composed.domain.ts[::-1] - _LOSS)
    distance = np.maximum(with_record - without, 0).sum() + _MASS
    # Rounding is all that the smallest losses have, times large numbers.
    false_alarms = np.minimum(np.cumsum(without), 1)
    missed = 1 - np.minimum(np.cumsum(with_record), 1)
    area = np.trapezoid(np.append(1.0, missed), np.append(0.0, false_alarms))
    return AttackBound(float(min(1.0, (1 + distance) / 2)), float(min(1.0, 1 - area + _MASS)))


def epsilon_lower_bound(predictions: Bools, is_member: Bools, *, delta: float) -> float:
    """Return a lower bound on epsilon, at least 0, from an attack's predictions.

    (epsilon, delta)-differential privacy implies TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta. The
    bound is the larger of log((TPR - delta) / FPR) and log((TNR - delta) / FNR), with each rate at the unfavourable end
    of its interval. The bound holds with probability 95 %.

    Predictions must be independent of each other and of the attack's threshold. For scores without a fixed threshold,
    use `empirical_epsilon`.

    Args:
        predictions: whether the attack predicts a member, (M,).
        is_member: whether the record is a member, (M,).
        delta: the guarantee's delta, in [0, 1).

    Raises:
        InputError: delta is outside its range.
    """
    require(0 <= delta < 1, f"'delta' must be in [0, 1) (got {delta:g})")
    hits, mistakes = (predictions[kind].sum(keepdims=True) for kind in (is_member, ~is_member))
    return float(_bounds(hits, mistakes, int(is_member.sum()), int((~is_member).sum()), delta)[0])


def empirical_epsilon(scores: Floats, is_member: Bools, stream: Stream, *, delta: float) -> float:
    """Return a lower bound on epsilon from an attack's scores.

    Members and non-members are halved at random. The threshold maximises the bound on the first half, and
    `epsilon_lower_bound` uses the second half. With n members and n non-members per half, the bound is at most about
    log(n / 3.7).

    Args:
        scores: the attack's scores, higher for members, (M,).
        is_member: whether the record is a member, (M,).
        delta: the guarantee's delta, in [0, 1).

    Returns:
        The lower bound, or 0 with fewer than two members or fewer than two non-members.

    Raises:
        InputError: delta is outside its range.

    Example:
        >>> import numpy as np
        >>> from shoal import Stream
        >>> from shoal.metrics import empirical_epsilon
        >>> member = np.arange(400) < 200
        >>> round(empirical_epsilon(1.0 * member, member, Stream(0), delta=1e-5), 1)
        3.3
        >>> empirical_epsilon(np.zeros(400), member, Stream(0), delta=1e-5)
        0.0
    """
    require(0 <= delta < 1, f"'delta' must be in [0, 1) (got {delta:g})")
    chosen, random = np.zeros(len(scores), dtype=bool), stream("empirical epsilon").numpy()
    for kind in (is_member, ~is_member):
        chosen[random.permutation(np.flatnonzero(kind))[::2]] = True
    if min(int(is_member[~chosen].sum()), int((~is_member[~chosen]).sum())) == 0:
        return 0.0
    inside, outside = (np.sort(scores[chosen & kind]) for kind in (is_member, ~is_member))
    values = np.unique(scores[chosen])
    thresholds = (values[1:] + values[:-1]) / 2
    if not len(thresholds):
        return 0.0
    hits, mistakes = (
        len(ordered) - np.searchsorted(ordered, thresholds, side="right") for ordered in (inside, outside)
    )
    bounds = _bounds(hits, mistakes, len(inside), len(outside), delta)
    threshold = thresholds[int(np.argmax(bounds))]
    return epsilon_lower_bound(scores[~chosen] > threshold, is_member[~chosen], delta=delta)


def _bounds(hits: Ints, mistakes: Ints, members: int, non_members: int, delta: float) -> Floats:
    """Return the bounds (T,) for T numbers of true positives and of false positives."""
    tpr, _ = clopper_pearson(hits, np.full(len(hits), members))
    _, fpr = clopper_pearson(mistakes, np.full(len(mistakes), non_members))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.fmax((tpr - delta) / fpr, (1 - fpr - delta) / (1 - tpr))
        return np.log(np.fmax(ratios, 1.0))


def canary_rate(scores: Floats, member: Bools, max_fpr: float = 0.0) -> Estimate:
    """Return the fraction of trained canaries that score above a threshold, with a 95 % interval.

    The threshold is the lowest score such that at most a fraction ``max_fpr`` of the left-out canaries scores higher.
    The interval treats the threshold as fixed (Clopper and Pearson 1934). The result is NaN without trained canaries,
    without left-out canaries, or if 0 < ``max_fpr`` < 1 / (number of left-out canaries).

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import canary_rate
        >>> rate = canary_rate(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False]))
        >>> rate.value, round(rate.low, 3), round(rate.high, 3)
        (0.5, 0.013, 0.987)
    """
    members, left_out = int(member.sum()), np.sort(scores[~member])[::-1]
    allowed = int(max_fpr * len(left_out) + 1e-9)
    if members == 0 or len(left_out) == 0 or (max_fpr > 0 and allowed == 0):
        return Estimate()
    hits = int((scores[member] > left_out[allowed]).sum())
    low, high = clopper_pearson(hits, members)
    return Estimate(hits / members, float(low), float(high))


def exposure_of_canaries(scores: Floats, member: Bools) -> Floats:
    """Return each canary's p-value for the hypothesis that the canary left no trace in the model, (M,).

    The p-value is (1 + the number of other left-out canaries with at least the same score) / (1 + the number of other
    left-out canaries). A canary with a NaN score has a NaN p-value and is not counted. Small p-values mean exposure.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import exposure_of_canaries
        >>> exposure_of_canaries(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False])).round(2)
        array([0.33, 0.67, 0.5 , 1.  ])
    """
    scored = ~np.isnan(scores)
    left_out = np.sort(scores[~member & scored])
    above = len(left_out) - np.searchsorted(left_out, scores, side="left")
    # A left-out canary is among those already.
    shares = np.where(member, (1 + above) / (1 + len(left_out)), above / max(1, len(left_out)))
    return np.where(scored, shares, np.nan)
