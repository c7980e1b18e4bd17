"""How exposed canaries are: those that were trained on against those that were left out, of which there are few.

``scores`` (M,) are higher where a canary looks trained on, ``member`` is (M,) bool.
"""

from dataclasses import dataclass

import numpy as np

from shoal.core.errors import require
from shoal.metrics.intervals import clopper_pearson
from shoal.metrics.membership import Bools, Floats


@dataclass(frozen=True)
class CanaryRate:
    """How many trained canaries are found at a threshold that at most some left-out ones exceed.

    The limits are of Clopper and Pearson 1934, at the threshold that these left-out canaries gave: ``low`` and ``high``
    take it as given, and ``fpr_high`` says how large its false positive rate may really be.

    Args:
        tpr: the share of the trained canaries above the threshold.
        low, high: the interval of that share.
        fpr_high: upper limit of the false positive rate at the threshold.
        found: number of trained canaries above the threshold.
        members: number of trained canaries.
        non_members: number of left-out canaries.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import canary_rate
        >>> scores, member = np.arange(20.0), np.arange(20) >= 10
        >>> rate = canary_rate(scores, member)
        >>> rate.tpr, round(rate.low, 2), round(rate.fpr_high, 2)
        (1.0, 0.69, 0.31)
    """

    tpr: float
    low: float
    high: float
    fpr_high: float
    found: int
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
        >>> rate.tpr, rate.found, round(rate.low, 3), round(rate.high, 3)
        (0.5, 1, 0.013, 0.987)
    """
    require(0 <= max_fpr < 1, f"'max_fpr' must be at least 0 and below 1; got {max_fpr:g}")
    require(0 <= confidence < 1, f"'confidence' must be at least 0 and below 1; got {confidence:g}")
    members, others = int(member.sum()), np.sort(scores[~member])[::-1]
    allowed = int(max_fpr * len(others) + 1e-9)
    if members == 0 or len(others) == 0 or (max_fpr > 0 and allowed == 0):
        nan = float("nan")
        return CanaryRate(nan, nan, nan, nan, 0, members, len(others))
    threshold = others[allowed]
    found, false = int((scores[member] > threshold).sum()), int((others > threshold).sum())
    low, high = clopper_pearson([found, false], [members, len(others)], confidence)
    return CanaryRate(found / members, float(low[0]), float(high[0]), float(high[1]), found, members, len(others))


def exposure_of_canaries(scores: Floats, member: Bools) -> Floats:
    """Of each canary, (M,) in (0, 1], the share of left-out canaries that look trained on at least as much.

    The canary itself counts as one of them: (1 + others) / (1 + left-out others). Of a canary that left no trace this
    is at most a with probability at most a, for each a. The smaller it is, the more exposed is the canary. NaN scores
    stay NaN and count for nobody.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import exposure_of_canaries
        >>> exposure_of_canaries(np.array([3.0, 1.0, 2.0, 0.0]), np.array([True, True, False, False])).round(2)
        array([0.33, 0.67, 0.5 , 1.  ])
    """
    known = ~np.isnan(scores)
    others = np.sort(scores[~member & known])
    above = len(others) - np.searchsorted(others, scores, side="left")
    # A left-out canary is among those already.
    shares = np.where(member, (1 + above) / (1 + len(others)), above / max(1, len(others)))
    return np.where(known, shares, np.nan)
