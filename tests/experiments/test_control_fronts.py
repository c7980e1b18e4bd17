"""The scripts that read the coordinator's sweeps: fronts, dominated areas, and whether the bar is taken."""

import numpy as np
import pandas as pd
import pytest

from experiment_scripts import experiment_script
from shoal.simulation.measure import CLIENT_COLUMNS


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


def test_differences_are_of_the_same_seed_and_a_setting_on_the_line_differs_by_nothing():
    front, random = experiment_script("control/front"), np.random.default_rng(0)
    low, high = (random.uniform(a, a + 0.1, (3, 5)) for a in (0.5, 0.7))
    figures = {"low": low, "high": high, "between": low + 0.3 * (high - low)}
    rows = [
        {"setting": name, "seed": seed, **dict(zip(front.COMPARED, row, strict=True))}
        for seed in (2, 0, 1)
        for name, of_seeds in figures.items()
        for row in [of_seeds[seed]]
    ]
    runs = pd.DataFrame(rows)
    less = front.apart(runs, front.of_setting(runs, "low").drop(index="low", level=0), "Less low")
    accuracy = (high - low)[:, 0]
    assert f"| high | accuracy | {accuracy.mean():+.3f} |" in less
    assert f"| between | accuracy | {0.3 * accuracy.mean():+.3f} |" in less
    on_line = front.of_line(runs, ("low", "high")).xs("between")
    expected = runs[runs["setting"] == "between"].set_index("seed")[list(on_line)]
    assert on_line.sort_index().to_numpy() == pytest.approx(expected.sort_index().to_numpy())


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
