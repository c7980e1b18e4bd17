"""The exposure of canaries: those that were trained on against the few that were left out.

``scores`` (M,) are higher where a canary looks trained on, ``member`` is (M,) bool.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.errors import require
from shoal.metrics.intervals import Bools, Floats, clopper_pearson


@dataclass(frozen=True)
class CanaryRate:
    """The true positive rate of canaries at a threshold that the left-out ones set.

    The limits are of Clopper and Pearson 1934: ``low`` and ``high`` take the threshold as fixed, ``fpr_high`` bounds
    its false positive rate.

    Args:
        tpr: the share of the trained canaries above the threshold.
        low, high: the interval of that share.
        fpr_high: upper limit of the false positive rate at the threshold.
        hits: number of trained canaries above the threshold.
        members: number of trained canaries.
        non_members: number of left-out canaries.
    """

    tpr: float
    low: float
    high: float
    fpr_high: float
    hits: int
    members: int
    non_members: int


def canary_rate(scores: Floats, member: Bools, max_fpr: float = 0.0, confidence: float = 0.95) -> CanaryRate:
    """The true positive rate at the lowest threshold that at most ``max_fpr`` of the left-out canaries exceed.

    A canary counts as found above the threshold, not at it; with ``max_fpr`` = 0 those above all left-out ones do. All
    rates are NaN without trained or without left-out canaries, and where ``max_fpr`` is above 0 but below one of them.

    Raises:
        InputError: a rate or a confidence outside [0, 1).

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import canary_rate
        >>> rate = canary_rate(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False]))
        >>> rate.tpr, rate.hits, round(rate.low, 3), round(rate.high, 3)
        (0.5, 1, 0.013, 0.987)
    """
    require(0 <= max_fpr < 1, f"'max_fpr' must be at least 0 and below 1; got {max_fpr:g}")
    require(0 <= confidence < 1, f"'confidence' must be at least 0 and below 1; got {confidence:g}")
    members, left_out = int(member.sum()), np.sort(scores[~member])[::-1]
    allowed = int(max_fpr * len(left_out) + 1e-9)
    if members == 0 or len(left_out) == 0 or (max_fpr > 0 and allowed == 0):
        nan = float("nan")
        return CanaryRate(nan, nan, nan, nan, 0, members, len(left_out))
    threshold = left_out[allowed]
    hits, mistakes = int((scores[member] > threshold).sum()), int((left_out > threshold).sum())
    low, high = clopper_pearson([hits, mistakes], [members, len(left_out)], confidence)
    return CanaryRate(hits / members, float(low[0]), float(high[0]), float(high[1]), hits, members, len(left_out))


def exposure_of_canaries(scores: Floats, member: Bools) -> Floats:
    """(M,) in (0, 1], per canary the share of left-out canaries that look trained on at least as much.

    The canary itself counts as one of them: (1 + others) / (1 + left-out others). For a canary without a trace this is
    at most a with probability at most a, for each a: the smaller, the more exposed. NaN scores stay NaN, uncounted.

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
