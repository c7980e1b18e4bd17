"""The exposure of each record, estimated from models trained with and without the record."""

from collections.abc import Iterator
from math import nan

import numpy as np

from shoal.attacks.reference_scores import ReferenceScores
from shoal.core.randomness import Stream
from shoal.metrics.intervals import Bools, Floats, Ints

_Prior = tuple[float, float]
"""The mean and shape of a distribution of variances; the mean is NaN or 0 without variances."""

DRAWS = 399
"""The number of random memberships. The 380th of 399 sorted maxima is an exact 95 % bound."""

MIN_MODELS = 5
"""The number of models, including the attacked model, needed for the lower ends of intervals."""


def record_exposure(
    scores: ReferenceScores, stream: Stream | None, *, pair: Ints | None = None
) -> tuple[Floats, Floats]:
    """Measure each record's exposure from its scores on models trained with the record (IN) and without (OUT).

    The exposure is Phi(d / 2), the balanced accuracy of the best test between two normal distributions with means d
    standard deviations apart. The two means are the record's mean IN score and mean OUT score, including the attacked
    model's score. The record's variance is moderated: an inverse-gamma prior, fitted to all records, is combined with
    the record's sample variance (Smyth 2004). The prior adds at least four degrees of freedom to the sample variance.
    An exposure below 0.5 means that IN scores are lower than OUT scores.

    The lower ends of the exposures' intervals are simultaneous for all records, with probability 95 %. A lower end is
    Phi((d - c e) / 2). The standard error of d at f degrees of freedom is e = sqrt(1 / n_in + 1 / n_out + d^2 / (2 f))
    (Hedges and Olkin 1985). The factor c is the 95 % quantile of the records' largest d / e under random memberships.
    The memberships are drawn per pair and model, or permuted per record if there are no pairs.

    Args:
        scores: the records' scores on the attacked model and on the reference models.
        stream: the random stream for memberships; without a stream, lower ends are NaN.
        pair: the pair number of each record, (M,). Each model trained on at most one record of a pair.

    Returns:
        The exposures (M,) and the lower ends of their intervals (M,). An exposure is NaN if the record has only IN
        scores or only OUT scores, or if no record has a sample variance. Lower ends are also NaN with fewer than
        `MIN_MODELS` models.

    Source: Smyth 2004, Statistical Applications in Genetics and Molecular Biology 3(1), article 3 (moderated t);
    Westfall and Young 1993, Resampling-Based Multiple Testing (the largest statistic under permutation).

    Example:
        >>> import numpy as np
        >>> from shoal import ReferenceScores, Stream
        >>> from shoal.audit import record_exposure
        >>> draw, member = np.random.default_rng(0), np.arange(400) < 200
        >>> trained, effect = draw.random((400, 32)) < 0.5, np.linspace(0.0, 6.0, 400)
        >>> score, reference = draw.normal(effect * member), draw.normal(effect[:, None] * trained)
        >>> records = ReferenceScores(score, member, reference, trained, np.zeros(400, dtype=np.int64))
        >>> exposure, low = record_exposure(records, Stream(0))
        >>> round(float(exposure[:100].mean()), 1), round(float(exposure[-100:].mean()), 1)
        (0.6, 1.0)
        >>> bool((low < exposure).all()), int((low[-100:] > 0.5).sum())
        (True, 100)
    """
    from scipy.stats import norm  # noqa: PLC0415 - takes long to import

    values = np.column_stack([scores.score, scores.reference])
    inside = np.column_stack([scores.member, scores.reference_member])
    # Scores are centred, because squares of large scores would lose digits.
    values = values - values.mean(axis=1, keepdims=True)
    sums = values.sum(axis=1), (values**2).sum(axis=1)
    distance, error, prior = _distances(values, inside, sums)
    if not prior[0] > 0:
        return np.full(len(scores), nan), np.full(len(scores), nan)
    exposure = norm.cdf(distance / 2)
    if stream is None or values.shape[1] < MIN_MODELS:
        return exposure, np.full(len(scores), nan)
    random, largest = stream("record exposure").numpy(), []
    for redrawn in _redrawn(inside, pair, random):
        drawn, drawn_error, _ = _distances(values, redrawn, sums, prior)
        largest.append(np.nanmax(drawn / drawn_error, initial=-np.inf))
    c = np.sort(largest)[int(np.ceil(0.95 * (len(largest) + 1))) - 1]
    return exposure, norm.cdf((distance - c * error) / 2)


def _distances(
    values: Floats, inside: Bools, sums: tuple[Floats, Floats], prior: _Prior | None = None
) -> tuple[Floats, Floats, _Prior]:
    """Return the differences d (M,) of mean IN and OUT scores, in standard deviations, and their standard errors (M,).

    Both are NaN for a record with only IN scores or only OUT scores. Random memberships use the prior of the true
    memberships; otherwise one exposed record would inflate the prior.

    Args:
        values: each record's scores minus their mean, (M, 1 + R).
        inside: whether each model was trained on each record, (M, 1 + R).
        sums: the sums of each record's values and of their squares, (M,) each.
        prior: the mean and shape of the variances' inverse-gamma prior, or None to fit the prior.
    """
    count_in = inside.sum(axis=1).astype(np.float64)
    count_out = values.shape[1] - count_in
    both = (count_in > 0) & (count_out > 0)
    sum_in = np.where(inside, values, 0.0).sum(axis=1)
    sum_out = sums[0] - sum_in
    count_in, count_out = np.where(both, count_in, nan), np.where(both, count_out, nan)
    mean_in, mean_out = sum_in / count_in, sum_out / count_out
    squares = np.maximum(0.0, sums[1] - sum_in * mean_in - sum_out * mean_out)[both]
    degrees = values.shape[1] - 2
    pooled, shape = prior or _prior(squares, degrees)
    freedom = degrees + 2 * shape
    variance = np.full(len(values), nan)
    variance[both] = (squares + 2 * (shape - 1) * pooled) / freedom
    d = (mean_in - mean_out) / np.sqrt(variance)
    return d, np.sqrt(1 / count_in + 1 / count_out + d**2 / (2 * freedom)), (pooled, shape)


def _prior(squares: Floats, freedom: int) -> tuple[float, float]:
    """Fit an inverse-gamma distribution of variances to sums of squares (m,); return its mean and shape.

    A sample variance s with f degrees of freedom has E s^2 = E v^2 (f + 2) / f, where v is the true variance. If v is
    inverse-gamma with shape a, E v^2 = (E v)^2 (1 + 1 / (a - 2)).
    """
    if freedom < 1 or not squares.sum() > 0:
        return nan, nan
    mean = float(squares.mean()) / freedom
    spread = float(((squares / freedom) ** 2).mean()) / mean**2 * freedom / (freedom + 2) - 1
    return mean, 2 + 1 / max(spread, 1e-3)


def _opposites(inside: Bools) -> Ints:
    """Number the models, (1 + R,); a pair shares a number if exactly one of its models trained on each record."""
    block = np.arange(inside.shape[1])
    for first in range(1, inside.shape[1] - 1, 2):
        if (inside[:, first] != inside[:, first + 1]).all():
            block[first + 1] = first
    return block


def _redrawn(inside: Bools, pair: Ints | None, random: np.random.Generator) -> Iterator[Bools]:
    """Yield `DRAWS` random memberships, distributed as if nothing is leaked."""
    if pair is None:
        yield from (random.permuted(inside, axis=1) for _ in range(DRAWS))
        return
    number, blocks = np.unique(pair, return_inverse=True)[1], _opposites(inside)
    for _ in range(DRAWS):
        heads = random.random((int(number.max()) + 1, len(blocks))) < 0.5
        yield inside ^ heads[:, blocks][number]
