"""The table [coordinator]: read, written, varied by sweeps, and every wrong value one sentence."""

from pathlib import Path

import pytest
import tomli_w

from conftest import toy_table
from shoal.algorithms import IFCA, IFCAMIR, Pooling, PricedChoice
from shoal.config.build import build
from shoal.config.defense_sections import PRIOR_EFFECTS
from shoal.config.schema import parse_config, read_config
from shoal.config.settings_tables import table_of
from shoal.control import Knob, RiskPrediction
from shoal.core.errors import InputError
from shoal.defenses import CCL, DPSGD, L2, Augmentation, Flooding, Mixup, RelaxLoss, ShorterTraining
from shoal.sweeps.plan import plan_runs
from shoal.sweeps.sweep_file import read_sweep

STEERED = {"target": 0.2, "min_clients": 3, "l2": 0.1, "augmentation": {"rotation": 10}, "pooling": 0.4}
ALONE = {
    "augmentation": ({"augmentation": {}}, Augmentation()),
    "mixup": ({"mixup": 0.4}, Mixup(0.4)),
    "flooding": ({"flooding": 0.3}, Flooding(0.3)),
    "shorter_training": ({"share_of_steps": 0.5}, ShorterTraining(0.5)),
    "l2": ({"l2": 0.1}, L2(0.1)),
    "relaxloss": ({"relaxloss": {"alpha": 0.5}}, RelaxLoss(0.5)),
    "ccl": ({"ccl": {}}, CCL()),
    "dp_sgd": ({"dp_sgd": {"noise_multiplier": 0.5}}, DPSGD(1.0, 0.5)),
    "pooling": ({"pooling": 0.3}, None),
}


def written(tmp_path: Path, **changes) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(tomli_w.dumps(toy_table(**changes)))
    return path


@pytest.mark.parametrize("name", PRIOR_EFFECTS)
def test_each_knob_is_given_by_the_keys_of_its_defence(toy_config, name):
    table, defense = ALONE[name]
    section = toy_config(coordinator=table).coordinator
    assert section.coordinator().knobs == {name: Knob(defense, *PRIOR_EFFECTS[name])}
    given = toy_config(coordinator=table | {"relief": {name: 0.5}, "cost": {name: 0.25}}).coordinator
    assert given.coordinator().knobs == {name: Knob(defense, 0.5, 0.25)}


def test_what_the_server_steers_wraps_the_algorithm(toy_config):
    section = toy_config(coordinator=STEERED).coordinator
    assert section.with_server_knobs(IFCAMIR()) == PricedChoice(Pooling(IFCAMIR(), 0.4))
    simulation = build(toy_config(coordinator=STEERED))[1]
    assert simulation.algorithm == PricedChoice(Pooling(IFCAMIR(), 0.4))
    assert list(simulation.coordinator.knobs) == ["augmentation", "l2", "pooling"]
    assert simulation.coordinator.target == 0.2


@pytest.mark.parametrize(
    "table", [STEERED, {"prediction": {"factor": 2.0}, "vote_epsilon": 1.0, "mixup": 0.2}], ids=str
)
def test_the_table_survives_a_file(toy_config, tmp_path, table):
    config = toy_config(coordinator=table)
    path = tmp_path / "config.toml"
    path.write_text(config.toml())
    assert read_config(path) == config
    assert read_config(path).toml() == config.toml()
    assert table_of(config.coordinator)["gain"] == 0.1, "the file is complete"
    assert parse_config(toy_table(), "test").coordinator is None
    assert "coordinator" not in toy_config().table()


def test_a_prediction_is_a_table_of_its_own(toy_config):
    law = toy_config(coordinator={"l2": 0.1, "prediction": {"factor": 2.0}}).coordinator.law
    assert law.prediction == RiskPrediction(factor=2.0)


def test_set_changes_a_knob_and_begins_a_coordinator(tmp_path):
    path = written(tmp_path)
    config = read_config(path, ["coordinator.augmentation.rotation=10", "coordinator.target=0.25"])
    assert config.coordinator.augmentation == Augmentation(rotation=10.0)
    assert config.coordinator.law.target == 0.25


# --- sweeps ---------------------------------------------------------------------------------------------------------


def test_a_sweep_varies_the_coordinator_and_sets_it_beside_none(toy_sweep, tmp_path):
    text = """
base = "base.toml"
seeds = [0]
[grid]
"coordinator.target" = [0.1, 0.3]
[grid.algorithm.ifca]
"algorithm.name" = "ifca"
[grid.algorithm.mixed]
"coordinator.mixup" = 0.3
"""
    sweep = read_sweep(toy_sweep(tmp_path, text, coordinator={"l2": 0.1}))
    runs = [planned.config for planned in plan_runs(sweep)]
    assert [each.coordinator.law.target for each in runs] == [0.1, 0.1, 0.3, 0.3]
    assert [list(each.coordinator.coordinator().knobs) for each in runs] == [["l2"], ["l2", "mixup"]] * 2
    assert [type(each.algorithm.value) for each in runs] == [IFCA, IFCAMIR] * 2
    beside = """
base = "base.toml"
seeds = [0]
[grid.algorithm.IFCA]
"algorithm.name" = "ifca"
[grid.algorithm.coordinator]
"algorithm.name" = "ifca"
"coordinator.augmentation.rotation" = 10
"""
    planned = plan_runs(read_sweep(toy_sweep(tmp_path, beside)))
    assert [each.config.coordinator is None for each in planned] == [True, False]
    assert [str(each.run) for each in planned] == ["algorithm = IFCA, seed 0", "algorithm = coordinator, seed 0"]


def test_a_sweep_refuses_a_coordinator_that_cannot_steer_before_any_run_is_started(toy_sweep, tmp_path):
    text = 'base = "base.toml"\nseeds = [0]\n[grid]\n"red_team.every" = [2, 0]\n'
    sweep = read_sweep(toy_sweep(tmp_path, text, algorithm__name="ifca", coordinator={"l2": 0.1}))
    with pytest.raises(InputError, match=r"red_team.every = 0, seed 0: coordinator: red_team.every"):
        plan_runs(sweep)


def test_noise_beside_batch_norm_is_one_sentence(toy_config, tmp_path, monkeypatch):
    (tmp_path / "normed.py").write_text("""
from torch import nn

def network(shape):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.inputs, 4), nn.BatchNorm1d(4), nn.Linear(4, shape.classes))
""")
    monkeypatch.syspath_prepend(tmp_path)
    config = toy_config(model={"name": "normed:network"}, coordinator={"dp_sgd": {"noise_multiplier": 0.5}})
    with pytest.raises(InputError, match=r"^coordinator: layer '2' \(BatchNorm1d\) mixes the examples of a batch"):
        build(config)
