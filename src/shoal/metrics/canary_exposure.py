"""The exposure of canaries: those that were trained on against the few that were left out.

``scores`` (M,) are higher where a canary looks trained on, ``member`` is (M,) bool.
"""

import numpy as np

from shoal.metrics.intervals import Bools, Estimate, Floats, clopper_pearson


def canary_rate(scores: Floats, member: Bools, max_fpr: float = 0.0) -> Estimate:
    """The share of the trained canaries above the lowest threshold that at most ``max_fpr`` of the others exceed.

    A canary counts as found above the threshold, not at it; with ``max_fpr`` = 0 those above all left-out ones do. The
    interval takes the threshold as fixed (Clopper and Pearson 1934). All is NaN without trained or without left-out
    canaries, and where ``max_fpr``, in [0, 1), is above 0 but below one of them.

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
