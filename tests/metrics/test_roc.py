"""ROC curves and the adjusted Rand index against scikit-learn, whose numbers they are to the last bit."""

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score, roc_auc_score, roc_curve

from shoal.core.errors import InputError
from shoal.metrics import adjusted_rand_index, roc, roc_auc


@pytest.mark.parametrize("examples", [2, 3, 17, 400, 5000])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighting", ["none", "real", "whole, some 0"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_curve_and_area_have_the_bits_of_scikit_learn(examples: int, ties: bool, weighting: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    is_member = rng.permutation(np.arange(examples) < max(1, examples // 3))
    scores = rng.normal(size=examples) + 0.5 * is_member
    scores = np.round(2 * scores) if ties else scores
    weights = {"none": None, "real": rng.uniform(0.1, 3, examples)}.get(
        weighting, rng.integers(0, 3, examples).astype(float)
    )
    if weighting == "whole, some 0":
        weights[np.flatnonzero(is_member)[0]] = weights[np.flatnonzero(~is_member)[0]] = 1.0
    fpr, tpr, _ = roc_curve(is_member, scores, sample_weight=weights, drop_intermediate=False)
    ours = roc(scores, is_member, weights)
    assert np.array_equal(ours[0], fpr)
    assert np.array_equal(ours[1], tpr)
    assert roc_auc(scores, is_member, weights) == roc_auc_score(is_member, scores, sample_weight=weights)


@pytest.mark.parametrize("is_member", [[True, True], [False, False]])
def test_auc_is_nan_without_members_or_others(is_member: list[bool]) -> None:
    assert np.isnan(roc_auc(np.array([1.0, 2.0]), np.array(is_member)))
    without = 1 if all(is_member) else 0
    rates = roc(np.array([1.0, 2.0]), np.array(is_member))
    assert np.isnan(rates[1 - without]).all()
    assert rates[without].tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_roc_refuses_scores_that_are_not_finite(value: float) -> None:
    for function in (roc, roc_auc):
        with pytest.raises(InputError, match="finite"):
            function(np.array([value, 1.0, 2.0]), np.array([True, False, True]))


def test_roc_refuses_no_examples() -> None:
    none = np.zeros(0)
    with pytest.raises(InputError, match="needs an example"):
        roc(none, none.astype(bool))
    with pytest.raises(InputError, match="needs an example"):
        roc_auc(np.array([1.0, 2.0]), np.array([True, False]), np.zeros(2))


@pytest.mark.parametrize("seed", range(20))
def test_the_rand_index_has_the_bits_of_scikit_learn(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients = int(rng.integers(1, 200))
    group, assignment = (rng.integers(0, rng.integers(1, 6), clients) for _ in range(2))
    assert adjusted_rand_index(assignment, group) == adjusted_rand_score(group, assignment)
    # Numbers of clusters are names: they may have gaps, and be others.
    assert adjusted_rand_index(assignment * 7 + 3, group) == adjusted_rand_score(group, assignment)


def test_the_rand_index_of_many_clients_does_not_overflow() -> None:
    group = np.repeat([0, 1], 2_000_000)
    assert adjusted_rand_index(1 - group, group) == 1.0
    mixed = np.tile([0, 1], 2_000_000)
    assert adjusted_rand_index(mixed, group) == adjusted_rand_score(group, mixed)
