"""The area under a ROC curve whose unit is a training run: records of one run are not independent."""

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from shoal.metrics.intervals import Estimate, Floats


def auc_over_runs(*parts: tuple[Floats, Floats], confidence: float = 0.95) -> Estimate:
    """The probability that a record's score in a run with it exceeds its score in a run without it, over records.

    Each part has the scores (m, Q) of m runs with Q records and those (n, Q) of n runs without. Only runs of one part
    are compared; the figure is the mean over parts. The interval is Student's t of DeLong's components per run, each a
    mean over records, with the degrees of freedom of the smaller side of the smallest part. Parts may have errors in
    common, as halves do whose attacks are fitted on each other, so their standard errors are averaged.

    Source: Obuchowski 1997, Biometrics 53:567-578, with a run as a cluster; DeLong, DeLong, Clarke-Pearson 1988.

    Args:
        parts: one or more parts, each with at least two runs on either side.
        confidence: the interval's confidence level, in (0, 1).

    Example:
        >>> import numpy as np
        >>> from shoal.metrics import auc_over_runs
        >>> seen, unseen = np.array([[3.0, 1.0], [2.0, 2.0]]), np.array([[1.0, 1.0], [2.0, 0.0]])
        >>> auc_over_runs((seen, unseen)).value
        0.875
    """
    values, errors, free = [], [], []
    for seen, unseen in parts:
        above = (seen[:, None] > unseen[None]) + 0.5 * (seen[:, None] == unseen[None])
        pairs = above.mean(axis=2)
        values.append(pairs.mean())
        errors.append(np.sqrt(_variance(pairs.mean(axis=1)) + _variance(pairs.mean(axis=0))))
        free.append(min(pairs.shape) - 1)
    value, half = float(np.mean(values)), float(stdtrit(min(free), 0.5 + confidence / 2) * np.mean(errors))
    return Estimate(value, max(value - half, 0.0), min(value + half, 1.0))


def _variance(components: Sequence[float] | Floats) -> float:
    """Of their mean."""
    return float(np.var(components, ddof=1) / len(components))
