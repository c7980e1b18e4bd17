"""The area under a ROC curve with training runs as the independent units."""

from collections.abc import Sequence

import numpy as np
from scipy.special import stdtrit

from shoal.metrics.intervals import Estimate, Floats


def auc_over_runs(*parts: tuple[Floats, Floats], confidence: float = 0.95) -> Estimate:
    """Estimate the probability that a record's score is higher in a run with the record than in a run without it.

    A part is a set of Q records. The estimate is the mean over parts. The interval uses DeLong's components per run and
    Student's t, with the degrees of freedom of the smallest set of runs. The parts' standard errors are averaged,
    because their errors may be dependent.

    Source: Obuchowski 1997, Biometrics 53:567-578, with a run as a cluster; DeLong, DeLong, Clarke-Pearson 1988.

    Args:
        parts: one pair per part: the scores in m >= 2 runs with the records, (m, Q), and in n >= 2 runs without, (n,
            Q).

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
    """Return the variance of the components' mean."""
    return float(np.var(components, ddof=1) / len(components))
