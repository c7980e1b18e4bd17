"""Runs with a property attack: what is written, what a crash leaves, and what wrong files say."""

import json

import pandas as pd
import pytest
import torch

from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.runs import run as runs
from shoal.simulation.property_metrics import PROPERTY_COLUMNS


def settings(**changes):
    """A small run on digits with thick strokes, as a table; keys like algorithm__rounds change it."""
    table = {
        "seed": 3,
        "data": {
            "source": "digits",
            "task": "class/thick",
            "clients": 5,
            "examples_per_client": 120,
            "test_examples": 200,
            "dirichlet_alpha": 1.0,
        },
        "model": {"name": "mlp", "hidden": 12},
        "algorithm": {"name": "ifca", "rounds": 12, "choose_by": "batch"},
        "local": {"steps": 1, "batch_size": 16, "learning_rate": 0.1},
        "red_team": {"every": 0, "attack": "gap"},
        "property_attack": {"mode": "scaled", "every": 3, "trees": 10, "simulated_clients": 3},
    }
    for key, value in changes.items():
        section = table
        *path, last = key.split("__")
        for part in path:
            section = section.setdefault(part, {})
        if value is None:
            del section[last]
        else:
            section[last] = value
    return table


def config_of(**changes):
    return parse_config(settings(**changes), "test")


def figures(out):
    told = json.loads((out / "summary.json").read_text())
    return {key: value for key, value in told.items() if not key.startswith("seconds.")}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return runs.run(config_of(), tmp_path_factory.mktemp("runs") / "whole")


def test_what_a_run_says_of_a_property(finished):
    told = figures(finished)
    rows = pd.read_csv(finished / "property.csv")
    assert set(PROPERTY_COLUMNS) <= set(rows)
    assert told["property.updates"] == len(rows)
    assert told["property.positives"] == rows["present"].sum() == 4
    assert rows.loc[rows["present"] == 1, "round"].tolist() == [3, 6, 9, 12]
    for key in ("property.auc", "property.auc_control", "property.auc_rounds", "main.auc", "main.auc_even"):
        assert 0 <= told[key] <= 1
    assert not list((finished / "checkpoint").iterdir()), "nothing is left of the observations"


class Killed(BaseException):
    pass


@pytest.mark.parametrize("every", [1, 4])
def test_a_killed_and_resumed_run_is_the_uninterrupted_one(finished, tmp_path, every):
    """The malicious_client's memory, the last updates and the observations all have to come back."""
    config = config_of(checkpoint__every=every)

    def kill(simulation, progress, report):
        if progress.state.round in (5, 9) and report is not None and progress.state.round not in killed:
            killed.add(progress.state.round)
            raise Killed

    killed: set[int] = set()
    out = tmp_path / "run"
    for _ in range(2):
        with pytest.raises(Killed):
            runs.run(config, out, resume=True, watch=kill)
    runs.run(config, out, resume=True, watch=kill)
    assert killed == {5, 9}
    assert (out / "property.csv").read_bytes() == (finished / "property.csv").read_bytes()
    assert (out / "models.safetensors").read_bytes() == (finished / "models.safetensors").read_bytes()
    assert figures(out) == figures(finished)


def test_a_damaged_checkpoint_takes_its_sightings_with_it(finished, tmp_path):
    out = tmp_path / "run"

    def kill(simulation, progress, report):
        if progress.state.round == 8:
            raise Killed

    with pytest.raises(Killed):
        runs.run(config_of(checkpoint__every=3), out, watch=kill)
    newest = sorted((out / "checkpoint").glob("round-*"))[-1]
    assert newest.name.startswith("round-000008")
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    runs.run(config_of(checkpoint__every=3), out, resume=True)
    assert (out / "property.csv").read_bytes() == (finished / "property.csv").read_bytes()


def test_sightings_without_a_checkpoint_are_forgotten(finished, tmp_path):
    """Killed between the first observations and their checkpoint, and resumed at another interval."""
    out = tmp_path / "run"

    def kill(simulation, progress, report):
        if progress.state.round == 4:
            raise Killed

    with pytest.raises(Killed):
        runs.run(config_of(checkpoint__every=4), out, watch=kill)
    for path in (out / "checkpoint").glob("round-*"):
        path.unlink()
    assert list((out / "checkpoint").glob("observations-*"))
    runs.run(config_of(checkpoint__every=5), out, resume=True)
    assert (out / "property.csv").read_bytes() == (finished / "property.csv").read_bytes()


def test_a_warm_up_may_end_right_before_a_round_with_the_property():
    build(config_of(algorithm__rounds=6, property_attack__every=3, property_attack__warm_up=5))


def test_a_passive_attack_leaves_the_models_as_they_are(tmp_path):
    """The same federation, once watched closely, once hardly."""
    close, hardly = (
        runs.run(config_of(property_attack=section), tmp_path / name)
        for name, section in (
            ("close", {"every": 3, "trees": 5}),
            ("hardly", {"every": 3, "trees": 5, "simulate_every": 100, "warm_up": 9, "sees": "own"}),
        )
    )
    assert (close / "models.safetensors").read_bytes() == (hardly / "models.safetensors").read_bytes()


def test_the_written_configuration_says_everything(finished):
    text = (finished / "config.toml").read_text()
    for line in ('mode = "scaled"', "gamma = 5.0", "alpha = 0.9", "attacker_share = 0.5", 'task = "class/thick"'):
        assert line in text


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data__task": "class"}, "needs a 'task' with a property"),
        ({"data__task": None}, "needs a 'task' with a property"),
        ({"data__task": "class/thin"}, "thick"),
        ({"data__clients": 2}, "clients' must be at least 3; got 2"),
        ({"property_attack__gamma": 0.0}, "'property_attack.gamma' must be above 0"),
        ({"property_attack__gamma": -2.0}, "'property_attack.gamma' must be above 0"),
        ({"property_attack__alpha": 1.2}, "'property_attack.alpha' must be at most 1"),
        ({"property_attack__alpha": -0.2}, "'property_attack.alpha' must be at least 0"),
        ({"property_attack__mode": "sneaky"}, "'property_attack.mode' must be 'passive', 'active' or 'scaled'"),
        ({"property_attack__gama": 3.0}, "did you mean 'gamma'"),
        ({"property_attack__every": 13}, "'algorithm.rounds' must be at least 13"),
        ({"property_attack__every": 5, "property_attack__warm_up": 10}, "'algorithm.rounds' must be at least 15"),
        ({"local__batch_size": 100}, "fewer than a batch of 100"),
        ({"data__groups": {"a": {"share": 0.5}, "b": {"share": 0.5}}}, "'data.groups' must be left out"),
        ({"data__groups": {"a": {"share": 1.0, "rotation": [0, 9]}}}, "'data.groups' must be left out"),
    ],
)
def test_what_cannot_run_is_one_sentence_before_anything_is_written(tmp_path, changes, sentence):
    with pytest.raises(InputError, match=sentence) as error:
        runs.run(config_of(**changes), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_weights_are_the_papers_unless_said_otherwise():
    decided = {
        name: build(config_of(algorithm={"name": name, "rounds": 9, **more}))[0].algorithm.weighting
        for name, more in (("fedavg", {}), ("ifca", {}))
    }
    assert decided == {"fedavg": "examples", "ifca": "equal"}
    equal = build(config_of(algorithm={"name": "fedavg", "rounds": 9, "weighting": "equal"}))
    assert equal[0].algorithm.weighting == "equal"
    assert equal[1].algorithm.shares(torch.tensor([0, 0]), torch.tensor([1, 3])).tolist() == [[0.5, 0.5]]
