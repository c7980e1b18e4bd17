"""The scripts that watch the coordinator's loop: settling and reversals of known sequences, events, and a tiny run."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from experiment_scripts import EXPERIMENTS, experiment_script
from shoal.config.schema import read_config
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import State

pytestmark = pytest.mark.usefixtures("_rendered_figures")

FOLDER = EXPERIMENTS / "control"
SETTLING = experiment_script("control/settling")

SMALL = [
    'data.source="digits"', "data.clients=10", "data.examples_per_client=6", "data.holdout_examples=4",
    "data.test_examples=20", "data.groups.minority.share=0.4", "data.groups.majority.share=0.6", "model.hidden=4",
    "local.epochs=1", "local.batch_size=6", "coordinator.augmentation.shift=1", "algorithm.rounds=2",
    "red_team.every=2",
]  # fmt: skip


def script(name):
    return experiment_script(f"control/{name}")


@pytest.fixture(scope="module")
def steps():
    return script("step_response")


@pytest.fixture(scope="module")
def costs():
    return script("cost")


@pytest.mark.parametrize(
    ("before", "after", "settled"),
    [
        (0.0, [0.4, 0.8, 1.0, 1.0, 1.0, 1.0], 3),
        (0.0, [0.0] * 6, 0),
        (1.0, [0.5, 1.0, 1.0, 1.0, 1.0, 1.0], 2),
        (0.0, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0], 4),
        (0.0, [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], None),
        (0.0, [0.0, 1.0] * 5, None),
        # Within 0.1 of the mean, which is not the last value.
        (0.0, [0.5, 0.45, 0.55, 0.45, 0.55], 1),
    ],
)
def test_a_strength_has_settled_once_it_stays_near_its_final_mean(before, after, settled):
    assert SETTLING.settled_after(before, after) == settled


@pytest.mark.parametrize(
    ("values", "count"),
    [([0, 1, 2, 3], 0), ([1, 1, 1], 0), ([0, 1, 1, 0], 1), ([0, 1, 0, 1], 2), ([3, 2, 2, 2, 1], 0), ([0.5], 0)],
)
def test_reversals_are_changes_of_direction_and_rest_is_none(values, count):
    assert SETTLING.reversals(values) == count


def rows_of(strengths, event=20):
    """Rows at estimates of one cluster, of which ``event`` is the first's round."""
    return pd.DataFrame({
        "seed": 0, "cluster": "larger", "round": [event + 5 * i for i in range(len(strengths))], "risk": 0.6,
        "over_limit": np.arange(len(strengths)) / 10, "directive.l2": strengths,
    })  # fmt: skip


def test_only_what_follows_the_event_counts():
    earlier = rows_of([0.0, 1.0, 0.0, 1.0], event=0)
    lines = SETTLING.settling(pd.concat([earlier, rows_of([0.0, 1.0, 0.0, 0.5, 0.5, 0.5, 0.5])]), 20)
    found = lines.iloc[0]
    assert len(lines) == 1
    assert [found["knob"], found["settled"], found["reversals"], found["reversals_settled"]] == ["l2", 3, 2, 0]
    assert [found["strength"], found["over_limit"]] == pytest.approx([0.5, 0.45])
    page = SETTLING.table(lines)
    assert "| larger | l2 | 0 | 3 | 2 | 0 | 0.50 | 0.600 | 0.45 |" in page
    assert SETTLING.conclusion(lines).startswith("1 of 1 strengths settled, after 3 estimates (median) and 3 at most.")


def test_what_never_settles_is_said():
    lines = SETTLING.settling(rows_of([0.0, 1.0] * 5), 20)
    assert np.isnan(lines["settled"].iloc[0])
    assert "| not | 8 |  |" in SETTLING.table(lines)
    assert SETTLING.conclusion(lines).startswith("0 of 1 strengths settled. After the event")


def steps_federation(steps):
    return steps.build(read_config(FOLDER / "response.toml", SMALL))[1].federation


def test_strict_clients_of_each_group_join(steps):
    whole, event = steps_federation(steps), steps.EVENTS[0]
    before = event.before(whole)
    after = event.after(whole, None, Stream(0))
    assert len(before) == 8
    assert len(after) == 10
    new = ~torch.isin(after.ids, before.ids)
    assert after.group[new].tolist() == [0, 1]
    assert after.preferences.threshold[new].tolist() == [0.52] * 2
    assert (after.preferences.threshold[~new] == 1).all()
    assert torch.equal(before.clients.owned(7), whole.clients.owned(int(torch.nonzero(whole.ids == before.ids[7]))))


def test_a_third_of_the_larger_cluster_leaves(steps):
    whole, event = steps_federation(steps), steps.EVENTS[1]
    assert (event.before(whole).preferences.threshold == 0.55).all()
    assignment = torch.tensor([0, 1, 1, 1, 0, 1, 0, 1, 1, 0])
    state = State(40, torch.zeros(2, 3), torch.full((2,), 0.5), assignment)
    after = event.after(whole, state, Stream(0))
    gone = ~torch.isin(whole.ids, after.ids)
    assert assignment[gone].tolist() == [1, 1]
    assert (after.preferences.threshold == 0.55).all()
    other = event.after(whole, state, Stream(3))
    assert not torch.equal(after.ids, other.ids), "who leaves is drawn"


def test_a_tiny_run_writes_all_that_it_says(steps, tmp_path, monkeypatch):
    monkeypatch.setattr(steps, "AFTERWARDS", 8)
    monkeypatch.setattr(steps, "EVENTS", (replace(steps.EVENTS[1], round=4),))
    page = steps.respond(tmp_path, [0], SMALL, "the command")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"disturbance.csv", "disturbance.svg", "step.md"}
    assert page == (tmp_path / "step.md").read_text()
    assert "Made by `the command`" in page
    assert "a third of the larger cluster leaves" in (tmp_path / "disturbance.svg").read_text()
    rows = pd.read_csv(tmp_path / "disturbance.csv")
    assert rows["round"].unique().tolist() == [2, 4, 6, 8, 10, 12]
    assert set(rows["cluster"]) == {"larger", "smaller"}
    total, at_event = rows.groupby("round")["clients"].sum(), rows[rows["round"] == 4]
    assert total[4] == 10
    assert total[6] == 10 - round(at_event.loc[at_event["cluster"] == "larger", "clients"].sum() / 3)


def test_the_cost_is_of_medians_and_against_the_first(costs):
    rows = pd.DataFrame([
        {"setting": name, "wall": 9.0, "processor": seconds, "sensor": 0.5, "coordinator": 0.25, "share": share}
        for name, seconds, share in (("a", 1, 0), ("b", 3, 0.1), ("a", 2, 0), ("b", 3, 0.2), ("a", 9, 0), ("b", 4, 0.9))
    ])  # fmt: skip
    lines = costs.medians(rows)
    assert lines["setting"].tolist() == ["a", "b"]
    assert lines["processor"].tolist() == [2, 3]
    assert lines["more"].tolist() == [0, 0.5]
    assert "| b | 9.00 | 3.00 | +50.0% | 0.500 | 0.250 | 20.0% |" in costs.table(lines)


def test_what_is_compared_differs_in_what_it_says(costs):
    compared = list(costs.settings_of(read_config(FOLDER / "response.toml", SMALL)).values())
    assert [each.red_team.every for each in compared] == [0, 2, 2, 0, 2]
    assert [each.coordinator is not None for each in compared] == [False, False, True, False, True]
    assert [each.privacy.thresholds[0] for each in compared] == [1, 1, 1, 1, 0.5]
    assert compared[3].defenses.augmentation == compared[4].coordinator.augmentation
    assert [each.defenses.augmentation is None for each in compared] == [True, True, True, False, True]


def test_the_parts_are_within_the_whole(costs):
    config = read_config(FOLDER / "response.toml", [*SMALL, "privacy.thresholds=[0.5,0.5]"])
    found = costs.measured(config, costs.load_data(config.data))
    assert 0 < found["coordinator"] < found["processor"]
    assert 0 < found["sensor"] < found["processor"]
    assert found["share"] == pytest.approx((found["sensor"] + found["coordinator"]) / found["processor"])


def test_a_wrong_key_is_one_sentence_and_nothing_is_written(steps, costs, tmp_path):
    for each in (
        lambda: steps.respond(tmp_path / "out", [0], ["model.hiden=3"], ""),
        lambda: costs.cost(tmp_path / "out", 1, ["model.hiden=3"], ""),
    ):
        with pytest.raises(InputError, match="did you mean 'hidden'"):
            each()
    assert not (tmp_path / "out").exists()
