"""Figures of canaries against loops over the canaries, and against scikit-learn."""

import numpy as np
import pytest
from scipy import stats

from shoal.core.errors import InputError
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
    assert rate.tpr == tpr_at_fpr(*roc(scores, member), max_fpr)
    assert rate.hits == round(rate.tpr * rate.members)
    assert (rate.members, rate.non_members) == (member.sum(), (~member).sum())


def test_limits_of_the_canary_rate_are_exact():
    scores, member = made_up(1)
    rate = canary_rate(scores, member, 0.1)
    assert stats.binom.sf(rate.hits - 1, rate.members, rate.low) == pytest.approx(0.025)
    assert stats.binom.cdf(rate.hits, rate.members, rate.high) == pytest.approx(0.025)
    none = canary_rate(scores, member, 0.0)
    assert none.fpr_high == pytest.approx(1 - 0.025 ** (1 / none.non_members))


def test_the_canary_rate_is_undefined_with_too_few_left_out():
    scores, member = np.arange(40.0), np.arange(40) >= 20
    assert np.isnan(canary_rate(scores, member, 0.01).tpr)
    assert canary_rate(scores, member, 0.05).tpr == 1
    assert canary_rate(scores, member).tpr == 1
    for nobody in (np.zeros(40, dtype=bool), np.ones(40, dtype=bool)):
        rate = canary_rate(scores, nobody)
        assert np.isnan([rate.tpr, rate.low, rate.high, rate.fpr_high]).all()


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


def test_canary_rates_outside_their_range_are_refused():
    scores, member = made_up(0)
    with pytest.raises(InputError, match="'max_fpr' must be at least 0 and below 1; got 1"):
        canary_rate(scores, member, 1.0)
    with pytest.raises(InputError, match="'confidence' must be at least 0 and below 1; got 1"):
        canary_rate(scores, member, 0.1, 1.0)
