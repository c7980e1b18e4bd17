"""Group fairness against Definitions 1 to 3 of IFCA-MIR, written out in numpy."""

import numpy as np
import pytest

from shoal.metrics import Fairness, fairness


def rate(event: np.ndarray, given: np.ndarray, weight: np.ndarray) -> float:
    """P(event | given), each row counting as often as its weight says."""
    return weight[event & given].sum() / weight[given].sum()


def spread(rates: list[float]) -> float:
    return max(rates) - min(rates)


def by_definition(labels: np.ndarray, said: np.ndarray, group: np.ndarray, weight: np.ndarray) -> list[float]:
    """The mean over classes of the largest differences between groups: parity, opportunity, odds."""
    rows = []
    for c in np.unique(labels):
        members = [group == g for g in np.unique(group)]
        parity = spread([rate(said == c, m, weight) for m in members])
        hits = spread([rate(said == c, m & (labels == c), weight) for m in members])
        alarms = spread([rate(said == c, m & (labels != c), weight) for m in members])
        rows.append((parity, hits, max(hits, alarms)))
    return np.mean(rows, axis=0).tolist()


def figures(found: Fairness) -> list[float]:
    return [found.demographic_parity, found.equal_opportunity, found.equalized_odds]


def case(groups: int, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    labels, group = draw.integers(0, classes, 300), draw.integers(0, groups, 300)
    wrong = draw.random(300) < 0.15 + 0.2 * group
    return labels, np.where(wrong, draw.integers(0, classes, 300), labels), group


@pytest.mark.parametrize("groups", [2, 3])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_figures_are_the_definitions(groups: int, classes: int, weighted: bool) -> None:
    labels, said, group = case(groups, classes, seed=groups + classes)
    weight = np.random.default_rng(2).uniform(0.2, 2, 300) if weighted else np.ones(300)
    expected = by_definition(labels, said, group, weight)
    assert figures(fairness(labels, said, group, weight)) == pytest.approx(expected)
    assert min(expected) > 0.01


def test_figures_by_hand() -> None:
    """Group 0 is always right; group 1 takes one of its two ones, and one of its two zeros, for the other."""
    labels = np.array([0, 0, 1, 0, 0, 1, 1])
    said = np.array([0, 0, 1, 0, 1, 1, 0])
    group = np.array([0, 0, 0, 1, 1, 1, 1])
    found = fairness(labels, said, group, np.ones(7))
    assert found.demographic_parity == pytest.approx(2 / 3 - 1 / 2)  # says 0: 2 of 3, 2 of 4; says 1: 1 of 3, 2 of 4
    assert found.equal_opportunity == pytest.approx(0.5)
    assert found.equalized_odds == pytest.approx(0.5)


def test_groups_that_are_treated_alike_are_treated_fairly() -> None:
    labels, said, _ = case(2, 4, seed=1)
    twice, group = np.concatenate([labels, labels]), np.repeat([0, 1], 300)
    found = fairness(twice, np.concatenate([said, said]), group, np.ones(600))
    assert figures(found) == pytest.approx([0, 0, 0])


def test_one_group_is_always_fair() -> None:
    labels, said, group = case(2, 4, seed=1)
    assert figures(fairness(labels, said, np.zeros_like(group), np.ones(300))) == [0, 0, 0]


def test_the_largest_unfairness_is_one() -> None:
    labels = np.array([0, 1, 0, 1])
    found = fairness(labels, np.array([0, 1, 1, 0]), np.array([0, 0, 1, 1]), np.ones(4))
    assert figures(found) == [0, 1, 1]


def test_a_whole_weight_is_that_many_repetitions() -> None:
    labels, said, group = case(2, 3, seed=4)
    weight = np.random.default_rng(5).integers(1, 5, 300)
    repeated = fairness(*(np.repeat(each, weight) for each in (labels, said, group)), np.ones(weight.sum()))
    assert figures(fairness(labels, said, group, weight.astype(float))) == pytest.approx(figures(repeated))
    assert figures(repeated) != pytest.approx(figures(fairness(labels, said, group, np.ones(300))))


def test_names_of_groups_do_not_matter() -> None:
    labels, said, group = case(3, 4, seed=6)
    other = np.array([7, 2, 5])[group]
    assert figures(fairness(labels, said, other, np.ones(300))) == pytest.approx(
        figures(fairness(labels, said, group, np.ones(300)))
    )


def test_perfect_predictions_have_equal_opportunity_even_where_a_group_lacks_a_class() -> None:
    """P(said 1 | label 1) is not defined in a group without ones; it is not zero."""
    labels, group = np.array([0, 1, 0, 0]), np.array([0, 0, 1, 1])
    found = fairness(labels, labels, group, np.ones(4))
    assert found.equal_opportunity == 0
    assert found.equalized_odds == 0
    assert found.demographic_parity == pytest.approx(0.5)
