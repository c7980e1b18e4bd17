"""The scripts that read the coordinator's sweeps: fronts, dominated areas, and whether the bar is taken."""

import numpy as np
import pandas as pd
import pytest

from experiment_scripts import experiment_script
from shoal.simulation.result import CLIENT_COLUMNS


def test_the_area_is_that_of_a_grid_of_dominated_points():
    front, random = experiment_script("control/front"), np.random.default_rng(0)
    accuracy, exposure = random.uniform(0.5, 0.8, 12), random.uniform(0.5, 0.75, 12)
    low, high = front.WORST
    a, e = np.meshgrid(np.arange(low, 0.8, 0.0005) + 0.00025, np.arange(0.5, high, 0.0005) + 0.00025)
    dominated = ((a[..., None] <= accuracy) & (e[..., None] >= exposure)).any(axis=2)
    assert front.dominated_area(accuracy, exposure) == pytest.approx(dominated.sum() * 0.0005**2, rel=0.02)


def test_a_setting_is_on_the_front_unless_another_is_better_in_both():
    means = pd.DataFrame({"accuracy": [0.7, 0.6, 0.65], "exposure": [0.6, 0.5, 0.61]}, index=["a", "b", "dominated"])
    assert experiment_script("control/front").front(means) == ["a", "b"]


@pytest.mark.parametrize("limits", [(0.5, 0.8), (0.58, 0.9)])
def test_violations_are_as_many_as_limits_drawn_at_random_have(tmp_path, limits):
    random = np.random.default_rng(0)
    exposure = random.uniform(0.45, 0.95, 20)
    clients = pd.DataFrame(dict.fromkeys(CLIENT_COLUMNS, 0), index=range(20)).assign(exposure=exposure)
    clients.to_csv(tmp_path / "clients.csv", index=False)
    over = (exposure > random.uniform(*limits, (20_000, 20))).sum(axis=1).mean()
    found = experiment_script("control/front").of_clients(tmp_path, limits)["expected"]
    # A standard deviation of the mean is at most 0.5 sqrt(20 / 20,000) = 0.016.
    assert found == pytest.approx(over, abs=0.08)


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, "taken"),
        ({"violations.total": 6}, "violations"),
        ({"accuracy.overall": 0.689}, "accuracy"),
        ({"accuracy.minority": 0.5, "smallest": 2}, "accuracy, minority, smallest model"),
    ],
)
def test_the_bar_says_what_was_missed(changes, missed):
    before = {"algorithm": "IFCA-MIR", "seed": 0, "violations.total": 10, "accuracy.overall": 0.7, "smallest": 10}
    before["accuracy.minority"] = 0.7
    after = {**before, "algorithm": "coordinator", "violations.total": 5, "accuracy.overall": 0.691, **changes}
    assert experiment_script("control/bar").taken(pd.DataFrame([before, after]))[0][-1] == missed
