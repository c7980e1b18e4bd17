"""How exposed each single record is, over all models that did and did not train on it."""

from math import nan

import numpy as np

from shoal.attacks.reference_scores import Floats, ReferenceScores


def record_exposure(scores: ReferenceScores, confidence: float = 0.95) -> tuple[Floats, Floats]:
    """How well each record's membership can be told from the scores of models that did and did not train on it.

    The balanced accuracy Phi(d / 2) of the best test between two normal distributions whose means are d standard
    deviations apart: the record's mean IN and mean OUT score over all models, the attacked one too, in units of the
    standard deviation around these means, pooled over the records. Below 0.5 where IN scores are lower.

    Of many records the most exposed also is the luckiest. So its lower end is one that all records keep at once with
    probability ``confidence`` (Bonferroni); d has the standard error sqrt(1 / n_in + 1 / n_out).

    Returns:
        The exposures (M,) and their lower ends (M,); NaN where a record has scores of one kind only.

    Example:
        >>> import numpy as np
        >>> from shoal import ReferenceScores
        >>> from shoal.attacks import record_exposure
        >>> draw, member = np.random.default_rng(0), np.arange(400) < 200
        >>> trained, effect = draw.random((400, 16)) < 0.5, np.linspace(0.0, 4.0, 400)
        >>> score, reference = draw.normal(effect * member), draw.normal(effect[:, None] * trained)
        >>> records = ReferenceScores(score, member, reference, trained, np.zeros(400, dtype=np.int64))
        >>> exposure, low = record_exposure(records)
        >>> round(float(exposure[:100].mean()), 1), round(float(exposure[-100:].mean()), 1)
        (0.6, 1.0)
        >>> bool((low <= exposure).all())
        True
    """
    from scipy.stats import norm  # noqa: PLC0415 - takes long to import

    values = np.column_stack([scores.score, scores.reference])
    inside = np.column_stack([scores.member, scores.reference_member])
    count_in, count_out = inside.sum(axis=1), (~inside).sum(axis=1)
    mean_in = np.where(inside, values, 0).sum(axis=1) / np.maximum(1, count_in)
    mean_out = np.where(inside, 0, values).sum(axis=1) / np.maximum(1, count_out)
    left = values - np.where(inside, mean_in[:, None], mean_out[:, None])
    freedom = values.size - (count_in > 0).sum() - (count_out > 0).sum()
    deviation = np.sqrt((left**2).sum() / freedom) if freedom > 0 else nan
    both = (count_in > 0) & (count_out > 0)
    if not deviation > 0:
        return np.full(len(scores), nan), np.full(len(scores), nan)
    distance = np.where(both, (mean_in - mean_out) / deviation, nan)
    error = np.sqrt(1 / np.maximum(1, count_in) + 1 / np.maximum(1, count_out))
    reach = norm.ppf(1 - (1 - confidence) / len(scores)) * error
    return norm.cdf(distance / 2), norm.cdf((distance - reach) / 2)
