"""The exposure of single records, and its lower end."""

import numpy as np
import pytest
from scipy.stats import norm

import shoal
from shoal.audit.record_exposure import _distances, _opposites, _redrawn, record_exposure


@pytest.mark.parametrize(("references", "blocks"), [(2, [0, 1, 1]), (3, [0, 1, 1, 3]), (5, [0, 1, 1, 3, 4, 5])])
def test_one_coin_draws_two_reference_models_of_which_always_one_trained(references, blocks):
    """The attacked model has its own coin, as models without their opposite and an odd last one have."""
    inside = np.random.default_rng(0).random((20, 1 + references)) < 0.5
    inside[:, 2] = ~inside[:, 1]
    assert _opposites(inside).tolist() == blocks


def test_lower_ends_are_below_exposures_by_what_chance_alone_rarely_exceeds():
    """By as many standard errors for each record as the largest of all is in 5 % of redrawn memberships."""
    draw = np.random.default_rng(0)
    member, trained = np.arange(60) < 30, draw.random((60, 16)) < 0.5
    effect = np.linspace(0.0, 4.0, 60)
    score, reference = draw.normal(effect * member), draw.normal(effect[:, None] * trained)
    scores = shoal.ReferenceScores(score, member, reference, trained, np.zeros(60, dtype=np.int64))
    exposure, low = record_exposure(scores, shoal.Stream(0))
    values = np.column_stack([score, reference])
    values = values - values.mean(axis=1, keepdims=True)
    inside_of = np.column_stack([member, trained])
    sums = values.sum(axis=1), (values**2).sum(axis=1)
    distance, error, prior = _distances(values, inside_of, sums)
    inside = (low > 1e-6) & (exposure < 1 - 1e-6)
    errors_below = ((2 * norm.ppf(exposure) - 2 * norm.ppf(low)) / error)[inside]
    assert inside.sum() > 20
    assert np.allclose(2 * norm.ppf(exposure[inside]), distance[inside])
    assert np.allclose(errors_below, errors_below[0])
    redrawn = _redrawn(inside_of, None, shoal.Stream(0)("record exposure").numpy())
    largest = [np.nanmax(np.divide(*_distances(values, by_chance, sums, prior)[:2])) for by_chance in redrawn]
    exceeded = 1 + (largest > errors_below[0] * (1 + 1e-9)).sum(), 1 + (largest > errors_below[0] * (1 - 1e-9)).sum()
    assert exceeded[0] <= 0.05 * (len(largest) + 1) < exceeded[1]
