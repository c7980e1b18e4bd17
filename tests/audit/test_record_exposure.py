"""The exposure of single records, and its lower end."""

import numpy as np
from scipy.stats import norm

import shoal
from shoal.audit.record_exposure import _distances, record_exposure


def test_lower_ends_of_exposures_are_equally_many_standard_errors_below_them():
    draw = np.random.default_rng(0)
    member, trained = np.arange(60) < 30, draw.random((60, 16)) < 0.5
    effect = np.linspace(0.0, 4.0, 60)
    score, reference = draw.normal(effect * member), draw.normal(effect[:, None] * trained)
    scores = shoal.ReferenceScores(score, member, reference, trained, np.zeros(60, dtype=np.int64))
    exposure, low = record_exposure(scores, shoal.Stream(0))
    values = np.column_stack([score, reference])
    values = values - values.mean(axis=1, keepdims=True)
    distance, error, _ = _distances(values, np.column_stack([member, trained]))
    inside = (low > 1e-6) & (exposure < 1 - 1e-6)
    errors_below = ((2 * norm.ppf(exposure) - 2 * norm.ppf(low)) / error)[inside]
    assert inside.sum() > 20
    assert np.allclose(2 * norm.ppf(exposure[inside]), distance[inside])
    assert np.allclose(errors_below, errors_below[0])
