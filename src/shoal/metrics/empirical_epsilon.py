"""A lower bound on the epsilon of differential privacy, from an attack that tells members from non-members.

Source: Jagielski, Ullman, Oprea 2020, arXiv:2006.07709, section 3 (bound from Clopper and Pearson's intervals); Nasr,
Hayes, Steinke et al. 2023, arXiv:2302.07956, section 2 (both kinds of error, delta).
"""

import numpy as np

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.metrics.intervals import Bools, Floats, Ints, clopper_pearson


def epsilon_lower_bound(predictions: Bools, is_member: Bools, *, delta: float) -> float:
    """The smallest epsilon that these answers do not refute, at least 0.

    (epsilon, delta)-differential privacy allows TPR <= e^epsilon FPR + delta, and the same of the answer "not a
    member". The bound is the larger of log((TPR - delta) / FPR) and log((TNR - delta) / FNR), with each rate at the
    unfavourable end of its interval. Both use the same two ends, a lower one of TPR and an upper one of FPR, each wrong
    with probability 2.5 %: so the bound holds with probability 95 %.

    It assumes that answers are independent of each other and of the rule that gives them: one example from each of many
    runs, or by approximation many examples of one run. A threshold set on the same scores needs `empirical_epsilon`.

    Args:
        predictions: (M,) true where the attack says member.
        is_member: (M,) bool.
        delta: of the guarantee, in [0, 1).

    Raises:
        InputError: delta outside its range.
    """
    require(0 <= delta < 1, f"'delta' must be in [0, 1); got {delta:g}")
    hits, mistakes = (predictions[kind].sum(keepdims=True) for kind in (is_member, ~is_member))
    return float(_bounds(hits, mistakes, int(is_member.sum()), int((~is_member).sum()), delta)[0])


def empirical_epsilon(scores: Floats, is_member: Bools, stream: Stream, *, delta: float) -> float:
    """A lower bound on epsilon from an attack's scores, higher for members.

    The examples are halved at random, members and non-members each. The threshold of the largest bound on one half is
    judged by `epsilon_lower_bound` on the other; so trying many thresholds costs no confidence.

    With n examples of a kind in a half, no attack can show more than about log(n / 3.7).

    Args:
        scores: (M,).
        is_member: (M,) bool.
        stream: of the halves.
        delta: as in `epsilon_lower_bound`.

    Returns:
        At least 0; 0 with fewer than two members or non-members.

    Raises:
        InputError: delta outside its range.

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
    require(0 <= delta < 1, f"'delta' must be in [0, 1); got {delta:g}")
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
    """The bound (T,) of each number of true and of false positives (T,)."""
    tpr, _ = clopper_pearson(hits, np.full(len(hits), members))
    _, fpr = clopper_pearson(mistakes, np.full(len(mistakes), non_members))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.fmax((tpr - delta) / fpr, (1 - fpr - delta) / (1 - tpr))
        return np.log(np.fmax(ratios, 1.0))
