"""ROC curves of scored examples, members and others.

The numbers are scikit-learn's `roc_curve` and `roc_auc_score`, bit for bit. Runs and audits need many of them: loading
scikit-learn takes 0.6 s of processor time, and its checks of two short arrays take longer than the curve.

``is_member`` is (M,) bool; ``weights`` (M,) say how much each example counts, None: equally.
"""

import numpy as np

from shoal.core.errors import require
from shoal.metrics.intervals import Bools, Floats


def roc(scores: Floats, is_member: Bools, weights: Floats | None = None) -> tuple[Floats, Floats]:
    """The ROC curve: false and true positive rates at every threshold, both increasing.

    Rates of which there is no example are NaN.

    Raises:
        InputError: scores that are not finite, or no example.

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import roc
        >>> roc(np.array([2.0, 1.0, 0.0]), np.array([True, False, True]))
        (array([0., 0., 1., 1.]), array([0. , 0.5, 0.5, 1. ]))
    """
    false, true = _positives(scores, is_member, weights)
    return _rates(false), _rates(true)


def roc_auc(scores: Floats, is_member: Bools, weights: Floats | None = None) -> float:
    """Area under the ROC curve: the share of pairs of a member and another in which the member scores higher, ties
    counting by half; NaN without members or without others.

    Raises:
        InputError: scores that are not finite, or no example.
    """
    if is_member.all() or not is_member.any():
        return float("nan")
    return _area(*_positives(scores, is_member, weights))


def roc_with_auc(scores: Floats, is_member: Bools, weights: Floats | None = None) -> tuple[Floats, Floats, float]:
    """The curve of `roc` and the area of `roc_auc`, from one sorting of the scores."""
    false, true = _positives(scores, is_member, weights)
    area = float("nan") if is_member.all() or not is_member.any() else _area(false, true)
    return _rates(false), _rates(true), area


def _area(false: Floats, true: Floats) -> float:
    """Under the curve through these positives, of which there are some of each kind."""
    if len(false) > 2:
        # Points on a straight piece of the curve do not change the area; left out, there are fewer to add up.
        corner = np.concatenate([[True], (np.diff(false, 2) != 0) | (np.diff(true, 2) != 0), [True]])
        false, true = false[corner], true[corner]
    fpr, tpr = _rates(false), _rates(true)
    return float((np.diff(fpr) * (tpr[1:] + tpr[:-1]) / 2.0).sum())


def _positives(scores: Floats, is_member: Bools, weights: Floats | None) -> tuple[Floats, Floats]:
    """False and true positives at every threshold, from the highest score to the lowest."""
    require(bool(np.isfinite(scores).all()), "the scores of a ROC curve must be finite; got NaN or an infinite one")
    if weights is not None and not weights.all():
        counted = weights != 0
        scores, is_member, weights = scores[counted], is_member[counted], weights[counted]
    require(len(scores) > 0, "a ROC curve needs an example; got none, or none with a weight")
    order = np.argsort(-scores, kind="stable")
    # Of many clients' models these are the largest arrays at the end of a run, so each is let go of when it has served.
    scores, member = scores[order], is_member[order]
    weights = weights if weights is None else weights[order]
    del order
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    del scores
    if weights is None:
        true = np.cumsum(member, dtype=np.float64)[last]
        return 1 + last - true, true
    # Added up and not subtracted, so that they increase also in their last bits.
    false = np.cumsum(np.where(member, 0.0, weights))[last]
    return false, np.cumsum(np.where(member, weights, 0.0))[last]


def _rates(positives: Floats) -> Floats:
    """Counts at falling thresholds as shares of the last, from 0 on."""
    with_zero = np.concatenate([[0.0], positives])
    return with_zero / with_zero[-1] if with_zero[-1] > 0 else np.full(len(with_zero), np.nan)
