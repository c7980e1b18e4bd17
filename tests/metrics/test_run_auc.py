"""The AUC whose unit is a run: by hand, and at its level where nothing is left of a client."""

import numpy as np
import pytest

from shoal.metrics import auc_over_runs
from shoal.replay.leaver_figures import attacks_on_leaver, strongest_attack


def test_two_runs_of_each_kind_by_hand():
    seen, unseen = np.array([[3.0, 1.0], [2.0, 2.0]]), np.array([[1.0, 1.0], [2.0, 0.0]])
    # Of run pairs: (1 + 1/2) / 2, (1 + 1) / 2, (1 + 1) / 2, (1/2 + 1) / 2.
    figure = auc_over_runs((seen, unseen), confidence=0.5)
    assert figure == (0.875, 0.875, 0.875), "both runs of a side have the mean 0.875"
    figure = auc_over_runs((seen, unseen - [[0], [9]]), confidence=0.5)
    # Runs with the client: 0.875, 1; those without it: 0.75... , 1; Student's t of one degree is 1 at 50 %.
    with_it, without = np.array([(0.75 + 1) / 2, 1.0]), np.array([(0.75 + 1) / 2, 1.0])
    error = np.sqrt(with_it.var(ddof=1) / 2 + without.var(ddof=1) / 2)
    assert (figure.value, figure.low) == pytest.approx((0.9375, 0.9375 - error))


def test_with_one_record_it_is_the_interval_of_delong():
    draw = np.random.default_rng(0)
    seen, unseen = draw.normal(1, 1, (30, 1)), draw.normal(0, 1, (30, 1))
    above = (seen > unseen.T).astype(float)
    error = np.sqrt(above.mean(1).var(ddof=1) / 30 + above.mean(0).var(ddof=1) / 30)
    figure = auc_over_runs((seen, unseen))
    assert figure.value == pytest.approx(above.mean())
    assert (figure.value - figure.low) / error == pytest.approx(2.045, abs=1e-3)


@pytest.mark.parametrize("common", [0.0, 0.3, 0.9])
def test_where_nothing_is_left_the_attacks_are_at_their_level(common):
    draw, draws, found = np.random.default_rng(1), 120, []
    for _ in range(draws):
        shared, difficulty = np.sqrt(common) * draw.normal(size=(16, 1)), draw.normal(0, 3, 40)
        scores = difficulty + shared + np.sqrt(1 - common) * draw.normal(size=(16, 40))
        attacks = attacks_on_leaver(scores, scores[:, :20] - difficulty[:20] + draw.normal(0, 3, 20))
        found.append([*attacks.values(), strongest_attack(attacks)[1]])
    values, lows, highs = np.array(found).transpose(2, 0, 1)
    # The Monte Carlo error of a mean is 0.02 where all records of a run move together.
    assert np.abs(values[:, :3].mean(axis=0) - 0.5).max() < 0.05
    assert (lows > 0.5).mean(axis=0).max() < 0.075
    assert (highs < 0.5).mean(axis=0).max() < 0.075


def test_the_level_is_kept_where_all_records_move_together():
    draw, certain = np.random.default_rng(3), 0
    for _ in range(100):
        signs = draw.choice([-1.0, 1.0], 9) * draw.uniform(0.8, 1.2, 9)
        scores = draw.normal(0, 3, 9) + signs * draw.normal(size=(16, 1)) + 0.1 * draw.normal(size=(16, 9))
        certain += strongest_attack(attacks_on_leaver(scores, np.empty((16, 0))))[1].low > 0.5
    assert certain <= 9, "5 % of 100, and two standard errors"


def test_a_small_trace_is_found():
    draw = np.random.default_rng(2)
    scores = draw.normal(0, 3, 40) + draw.normal(size=(32, 40))
    scores[::2] += 0.5
    attacks = attacks_on_leaver(scores, np.empty((32, 0)))
    assert strongest_attack(attacks)[1].low > 0.5
    erased = attacks_on_leaver(-scores, np.empty((32, 0)))
    assert erased["score"].high < 0.5 < strongest_attack({"score": erased["score"]})[1].low
