"""Thresholds of clients, and their weights of risk."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation, draw_preferences
from shoal.data.content import fingerprint

PAPER = (0.5, 0.8)


def test_thresholds_are_uniform_in_their_range() -> None:
    threshold = draw_preferences(4000, PAPER, 0.5, Stream(0)).threshold
    assert threshold.shape == (4000,)
    assert threshold.min() >= 0.5
    assert threshold.max() <= 0.8
    assert stats.kstest(threshold.numpy(), stats.uniform(0.5, 0.3).cdf).pvalue > 0.001


def test_thresholds_come_from_the_seed_and_from_nothing_else() -> None:
    first = draw_preferences(50, PAPER, 0.5, Stream(1)).threshold
    torch.rand(3)
    assert torch.equal(draw_preferences(50, PAPER, "threshold", Stream(1)).threshold, first)
    assert not torch.equal(draw_preferences(50, PAPER, 0.5, Stream(2)).threshold, first)


def test_beta_threshold_weighs_risk_by_the_threshold() -> None:
    """The most tolerant client weighs loss only, the least tolerant risk only."""
    preferences = draw_preferences(200, PAPER, "threshold", Stream(0))
    expected = (0.8 - preferences.threshold) / 0.3
    torch.testing.assert_close(preferences.beta, expected)
    assert 0 <= preferences.beta.min() < 0.05
    assert 0.95 < preferences.beta.max() <= 1
    assert np.corrcoef(preferences.beta, preferences.threshold)[0, 1] == pytest.approx(-1)


@pytest.mark.parametrize("beta", [0, 0.25, 1, 1.0])
def test_one_beta_for_all(beta: float) -> None:
    preferences = draw_preferences(3, PAPER, beta, Stream(0))
    assert preferences.beta.tolist() == [beta] * 3
    assert preferences.beta.dtype == torch.float64


def test_one_beta_per_client_and_alpha() -> None:
    preferences = draw_preferences(3, PAPER, [0.0, 0.25, 1.0], Stream(0))
    assert preferences.beta.tolist() == [0, 0.25, 1]
    assert preferences.alpha.tolist() == [1, 0.75, 0]


@pytest.mark.parametrize(
    ("bounds", "beta", "sentence"),
    [
        ((0.4, 0.8), 0.5, r"'thresholds' .* 0.5 <= low <= high <= 1; got \[0.4, 0.8\]"),
        ((0.8, 0.6), 0.5, r"'thresholds' .* got \[0.8, 0.6\]"),
        ((float("nan"), 0.6), 0.5, r"'thresholds' .* got \[nan, 0.6\]"),
        (PAPER, 1.5, r"'beta' must be in \[0, 1\]; got 1.5"),
        (PAPER, float("nan"), r"'beta' must be in \[0, 1\]; got nan"),
        (PAPER, [0.5, 2.0, 0.5], r"'beta' must be in \[0, 1\]; got 2"),
        (PAPER, [0.5, 0.5], r"'beta' must be one number or one for each of 3 clients; got 2 numbers"),
        (PAPER, "loss", r"'beta' must be a number in \[0, 1\] or \"threshold\"; got \"loss\""),
        ((0.7, 0.7), "threshold", r"'beta' = \"threshold\" needs 'thresholds' with low < high"),
    ],
)
def test_what_is_refused(bounds: tuple[float, float], beta: float | str | list[float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        draw_preferences(3, bounds, beta, Stream(0))


def test_drawn_limits_say_so_and_change_no_hash():
    drawn = draw_preferences(3, (0.5, 0.8), 0.5, Stream(0))
    assert drawn.drawn
    assert drawn.take(torch.tensor([2, 0])).drawn
    assert not draw_preferences(3, (0.7, 0.7), 0.5, Stream(0)).drawn
    one = ([[0.5]], [0])
    given = Federation.from_tensors([one] * 3, test=one, threshold=drawn.threshold, beta=drawn.beta, classes=2)
    assert not given.preferences.drawn
    assert fingerprint(given) == fingerprint(replace(given, preferences=drawn))
