"""Group fairness (Definitions 1 to 3 of IFCA-MIR) against fairlearn, and clusters against groups by hand."""

import numpy as np
import pytest

from shoal.metrics import Fairness, exceeds_threshold, fairness, is_migrated


def numbers(result: Fairness) -> list[float]:
    return [result.demographic_parity, result.equal_opportunity, result.equalized_odds]


def by_fairlearn(predictions: np.ndarray, labels: np.ndarray, group: np.ndarray, weights: np.ndarray) -> list[float]:
    """The mean over classes of the largest differences between groups that have examples of what a rate is of: parity,
    opportunity, odds.
    """
    from fairlearn.metrics import (  # noqa: PLC0415 - takes seconds to import
        demographic_parity_difference,
        equal_opportunity_difference,
    )

    def opportunity(actual: np.ndarray, predicted: np.ndarray) -> float:
        rows = np.isin(group, group[actual])
        if len(np.unique(group[rows])) < 2:
            return 0.0
        return equal_opportunity_difference(
            actual[rows].astype(int),
            predicted[rows].astype(int),
            sensitive_features=group[rows],
            sample_weight=weights[rows],
        )

    differences = []
    for c in np.unique(labels):
        actual, predicted = labels == c, predictions == c
        parity = demographic_parity_difference(actual, predicted, sensitive_features=group, sample_weight=weights)
        hits = opportunity(actual, predicted)
        differences.append((parity, hits, max(hits, opportunity(~actual, predicted))))
    return np.mean(differences, axis=0).tolist()


def scored(groups: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Predictions, labels and groups; the more wrong the higher the group."""
    rng = np.random.default_rng(seed)
    labels, group = rng.integers(0, classes, 300), rng.integers(0, groups, 300)
    wrong = rng.random(300) < 0.15 + 0.2 * group
    return np.where(wrong, rng.integers(0, classes, 300), labels), labels, group


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lacking", [False, True])
def test_fairness_equals_fairlearn(groups: int, weighted: bool, lacking: bool) -> None:
    predictions, labels, group = scored(groups, 4, seed=groups)
    if lacking:  # the first class is in the first group only
        group = np.where(labels == 0, 0, group)
    weights = np.random.default_rng(2).uniform(0.2, 2, 300) if weighted else np.ones(300)
    expected = by_fairlearn(predictions, labels, group, weights)
    assert numbers(fairness(predictions, labels, group, weights)) == pytest.approx(expected, rel=1e-12, abs=0)


def test_the_largest_unfairness_is_1() -> None:
    labels = np.array([0, 1, 0, 1])
    result = fairness(np.array([0, 1, 1, 0]), labels, np.array([0, 0, 1, 1]), np.ones(4))
    assert numbers(result) == [0, 1, 1]


def test_integer_weights_are_repetitions_in_fairness() -> None:
    predictions, labels, group = scored(2, 3, seed=4)
    weights = np.random.default_rng(5).integers(1, 5, 300)
    repeated = fairness(*(np.repeat(each, weights) for each in (predictions, labels, group)), np.ones(weights.sum()))
    assert numbers(fairness(predictions, labels, group, weights.astype(float))) == pytest.approx(numbers(repeated))
    assert numbers(repeated) != pytest.approx(numbers(fairness(predictions, labels, group, np.ones(300))))


def test_perfect_predictions_have_equal_opportunity_even_where_a_group_lacks_a_class() -> None:
    """P(prediction 1 | label 1) is not defined in a group without ones; it is not zero."""
    labels, group = np.array([0, 1, 0, 0]), np.array([0, 0, 1, 1])
    result = fairness(labels, labels, group, np.ones(4))
    assert result.equal_opportunity == 0
    assert result.equalized_odds == 0
    assert result.demographic_parity == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("group", "assignment", "expected"),
    [
        ([0, 0, 1, 1], [0, 0, 1, 1], []),
        ([0, 0, 1, 1], [1, 1, 0, 0], []),
        ([0, 0, 1, 1], [0, 0, 0, 1], [2]),
        ([0, 1, 1, 1], [0, 0, 0, 0], [0]),
        ([0, 0, 1, 1], [0, 0, 0, 0], []),  # a tie: nobody is in the minority
        ([0, 0, 1, 1, 2], [3, 3, 3, 3, 3], [4]),  # a tie at the top leaves the third group outside
        ([0, 1, 2, 0, 1, 1], [0, 0, 0, 1, 1, 1], [3]),
        ([2, 2, 0], [5, 5, 5], [2]),
        ([1], [0], []),
    ],
)
def test_clients_in_a_cluster_of_another_group_have_migrated(
    group: list[int], assignment: list[int], expected: list[int]
) -> None:
    migrated = is_migrated(np.array(assignment), np.array(group))
    assert migrated.dtype == bool
    assert np.flatnonzero(migrated).tolist() == expected


@pytest.mark.parametrize(
    ("exposure", "threshold", "expected"),
    [(0.61, 0.6, True), (0.6, 0.6, False), (0.59, 0.6, False), (1.0, 0.5, True), (float("nan"), 0.5, False)],
)
def test_a_risk_limit_is_exceeded_above_it_and_not_at_it(exposure: float, threshold: float, expected: bool) -> None:
    assert exceeds_threshold(np.array([exposure]), np.array([threshold])).tolist() == [expected]
