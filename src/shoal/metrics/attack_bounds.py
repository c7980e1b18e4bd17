"""The limit that differential privacy sets on every attack on the membership of a record, also on unknown ones.

Such an attack tests whether one record was used or left out, the two cases of the guarantee (add/remove). Any test of
the two has at most the balanced accuracy ``(1 + TV) / 2``, where TV is their total variation distance, and at most the
AUC above their trade-off curve. Both also limit means over many records with one threshold, since the curve is convex.

An audit asks for each record alone, a member or a non-member. A client's number of examples is fixed, so another record
is in the place of one that is left out. That adds nothing for an attacker who does not know the other one. An attacker
who knows that exactly one of two given records was used tests a replacement. It is two changes at once: the limit of a
Gaussian mechanism is then that of ``2 mu``, and no function here states it.

Source: Dong, Roth and Su, "Gaussian Differential Privacy", arXiv:1905.02383, sections 2.1 and 2.3.
"""

import math
import warnings
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

History = tuple[tuple[float, float, int], ...]
"""The noise multiplier and the sampling rate of a step, and a number of such steps."""

_LOSS, _MASS = 0.01, 1e-6
"""The error of the discretised privacy loss, and the probability of a larger one; both are added to the limit."""

_CELLS = 1e7
"""Cells, at most, of the discretised privacy loss."""


class AttackBound(NamedTuple):
    """The largest balanced accuracy and AUC of any attack, in [0.5, 1]."""

    accuracy: float
    auc: float


def gaussian_bound(mu: float) -> AttackBound:
    """The limit of Gaussian mechanisms with ``mu^2 = sum (sensitivity / standard deviation)^2`` over all.

    It is exact: ``Phi(mu / 2)`` and ``Phi(mu / sqrt(2))``.

    >>> [round(float(value), 3) for value in (*gaussian_bound(0.0), *gaussian_bound(1.0), *gaussian_bound(math.inf))]
    [0.5, 0.5, 0.691, 0.76, 1.0, 1.0]
    """
    return AttackBound(float(ndtr(mu / 2)), float(ndtr(mu / math.sqrt(2))))


@lru_cache(maxsize=4096)
def composed_bound(history: History) -> AttackBound:
    """The limit of steps of sampled Gaussian mechanisms: noise multipliers, sampling rates, numbers of steps.

    Args:
        history: at a rate below 1 a step is on a Poisson subsample. Its limit is by the privacy loss distribution of
            Gopi, Lee and Wutschitz, arXiv:2106.02848, and at most that of steps on all examples.

    >>> [round(value, 2) for value in composed_bound(((1.0, 0.05, 100), (1.0, 0.1, 50)))]
    [0.7, 0.77]
    """
    used = [part for part in history if part[2] > 0]
    if any(noise == 0 for noise, _, _ in used):
        return gaussian_bound(math.inf)
    whole = gaussian_bound(math.sqrt(sum(steps / noise**2 for noise, _, steps in used)))
    if all(rate == 1 for _, rate, _ in used):
        return whole
    sampled = _sampled_bound(used)
    return AttackBound(min(whole.accuracy, sampled.accuracy), min(whole.auc, sampled.auc))


def _sampled_bound(used: list[tuple[float, float, int]]) -> AttackBound:
    """The limit by the discretised privacy loss; no limit where that takes too much memory."""
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
