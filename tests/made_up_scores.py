"""Matrices of scores whose right answers are known."""

import numpy as np

from shoal.attacks import Population, ReferenceScores
from shoal.audit.attacked_records import AuditRecords


def made_up(
    records: int,
    references: int,
    *,
    seed: int = 0,
    models: int = 1,
    population: int = 0,
    shift: float = 1.0,
    uneven: bool = False,
) -> ReferenceScores:
    """A score is the record's difficulty, N(0, 2), plus ``shift`` where the model trained on it, plus noise N(0, 1).

    Args:
        records, references, models, population: M, R, K, and rows of the population.
        seed: of all draws.
        shift: of models that trained on the record; where ``uneven``, the mean of an exponential distribution.
        uneven: whether records differ in their shift.
    """
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(0, np.sqrt(2), records + population)
    shifts = rng.exponential(shift, records) if uneven else np.full(records, shift)
    member = rng.random((records, 1 + references)) < 0.5
    scores = difficulty[:, None] + rng.normal(size=(records + population, 1 + references))
    scores[:records] += shifts[:, None] * member
    model = rng.integers(0, models, records + population)
    others = Population(scores[records:, 0], scores[records:, 1:], model[records:]) if population else None
    return ReferenceScores(
        scores[:records, 0], member[:, 0], scores[:records, 1:], member[:, 1:], model[:records], others
    )


def made_up_pairs(
    pairs: int, references: int, *, seed: int = 0, effect: np.ndarray | None = None, groups: int = 2
) -> AuditRecords:
    """Records in pairs as a run's are: the first trained on, and the reference models 2 i and 2 i + 1 opposite.

    A record's standard deviation is log-normal, its median 0.4 and its 99th percentile 1.5, as in real runs. Half of
    what a score varies by its model does to both records of a pair, and each model moves all scores a little.

    Args:
        pairs, references: Q and R.
        seed: of all draws.
        effect: (2 Q,) by how many of its standard deviations training on a record moves its scores; None: by none.
        groups: on so many models, one for each.
    """
    rng, count = np.random.default_rng(seed), 2 * pairs
    pair = np.tile(np.arange(pairs), 2)
    deviation = np.exp(rng.normal(np.log(0.4), 0.57, (count, 1)))
    common, own = rng.normal(size=(pairs, 1 + references))[pair], rng.normal(size=(count, 1 + references))
    scores = (
        rng.normal(0, 2, (count, 1)) + deviation * (common + own) / np.sqrt(2) + rng.normal(size=1 + references) / 2
    )
    coins = rng.random((pairs, (references + 1) // 2)) < 0.5
    exchanged = np.repeat(coins, 2, axis=1)[:, :references] ^ (np.arange(references) % 2 == 1)
    trained = np.concatenate([~exchanged, exchanged])
    member = np.arange(count) < pairs
    if effect is not None:
        scores += deviation * effect[:, None] * np.column_stack([member, trained])
    group = rng.integers(0, groups, pairs)[pair]
    matrix = ReferenceScores(scores[:, 0], member, scores[:, 1:], trained, group)
    name = np.arange(count).astype(str).astype(object)
    return AuditRecords(matrix, name, pair.astype(str).astype(object), group.astype(str).astype(object), pair=pair)
