"""Matrices of scores whose right answers are known."""

import numpy as np

from shoal.attacks import Population, ReferenceScores


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
