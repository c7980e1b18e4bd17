"""Clusters against groups, counted by hand."""

import numpy as np
import pytest

from shoal.metrics import exceeds_threshold, is_migrated


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
