"""Figures of canaries against loops over the canaries, and against scikit-learn."""

import numpy as np
import pytest
from scipy import stats

from shoal.metrics import canary_rate, exposure_of_canaries, roc, tpr_at_fpr


def made_up(seed: int, count: int = 90) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties, a little higher for members."""
    draw = np.random.default_rng(seed)
    member = draw.random(count) < 0.5
    return (draw.normal(0, 2, count) + member).round(), member


@pytest.mark.parametrize("max_fpr", [0.0, 0.05, 0.3])
@pytest.mark.parametrize("seed", range(4))
def test_the_canary_rate_is_on_the_roc_curve(seed, max_fpr):
    scores, member = made_up(seed)
    rate = canary_rate(scores, member, max_fpr)
    assert rate.value == tpr_at_fpr(*roc(scores, member), max_fpr)


def test_limits_of_the_canary_rate_are_exact():
    scores, member = made_up(1)
    rate = canary_rate(scores, member, 0.1)
    hits = round(rate.value * member.sum())
    assert stats.binom.sf(hits - 1, member.sum(), rate.low) == pytest.approx(0.025)
    assert stats.binom.cdf(hits, member.sum(), rate.high) == pytest.approx(0.025)


def test_the_canary_rate_is_undefined_with_too_few_left_out():
    scores, member = np.arange(40.0), np.arange(40) >= 20
    assert np.isnan(canary_rate(scores, member, 0.01).value)
    assert canary_rate(scores, member, 0.05).value == 1
    assert canary_rate(scores, member).value == 1
    for nobody in (np.zeros(40, dtype=bool), np.ones(40, dtype=bool)):
        assert np.isnan(canary_rate(scores, nobody)).all()


def test_exposure_is_the_rank_among_left_out_canaries():
    scores, member = made_up(2)
    expected = []
    for i in range(len(scores)):
        others = [j for j in range(len(scores)) if not member[j] and j != i]
        above = sum(scores[j] >= scores[i] for j in others)
        expected.append((1 + above) / (1 + len(others)))
    np.testing.assert_allclose(exposure_of_canaries(scores, member), expected)


def test_canaries_without_a_score_are_not_counted():
    scores, member = made_up(3)
    more = np.concatenate([[np.nan, np.nan], scores])
    exposure = exposure_of_canaries(more, np.concatenate([[True, False], member]))
    assert np.isnan(exposure[:2]).all()
    np.testing.assert_array_equal(exposure[2:], exposure_of_canaries(scores, member))
