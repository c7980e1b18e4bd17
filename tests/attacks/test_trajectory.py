"""The loss-trajectory attack: its regression against scikit-learn's, and
a case in which the path matters and the last loss says little.
"""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from shoal.attacks.scores.trajectory import LossTrajectory
from shoal.core.errors import InputError


def paths(seed: int, count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Losses over five rounds: all records end at a loss of about 0.2; members get there sooner."""
    draw = np.random.default_rng(seed)
    member = draw.random(count) < 0.4
    rate = np.where(member, 0.7, 0.35)[:, None]
    losses = 0.2 + 2 * np.exp(-rate * np.arange(1, 6)) * (np.arange(5) < 4) + draw.normal(0, 0.25, (count, 5))
    return losses, member


def test_the_trajectory_is_better_than_the_last_loss_where_the_path_matters():
    fitted = LossTrajectory().fit(*paths(0))
    losses, member = paths(1)
    by_path, by_last = roc_auc_score(member, fitted.score(losses)), roc_auc_score(member, -losses[:, -1])
    assert by_last < 0.6
    assert by_path > 0.9


def test_the_regression_is_that_of_scikit_learn():
    losses, member = paths(2)
    expected = make_pipeline(StandardScaler(), LogisticRegression(C=0.3, class_weight="balanced")).fit(losses, member)
    fitted, fresh = LossTrajectory(inverse_penalty=0.3).fit(losses, member), paths(3)[0]
    np.testing.assert_allclose(fitted.score(fresh), expected.decision_function(fresh), atol=1e-6)
    assert np.array_equal(fitted.score(fresh) > fitted.threshold, expected.predict(fresh))


def test_a_round_in_which_all_losses_are_equal_says_nothing():
    losses, member = paths(4)
    more = np.concatenate([np.full((len(losses), 1), 0.7), losses], axis=1)
    fitted, wider = LossTrajectory().fit(losses, member), LossTrajectory().fit(more, member)
    np.testing.assert_allclose(wider.score(more), fitted.score(losses), atol=1e-6)


def test_records_of_one_kind_are_refused():
    with pytest.raises(InputError, match="members and non-members; got one kind"):
        LossTrajectory().fit(np.zeros((4, 2)), np.ones(4, dtype=bool))
