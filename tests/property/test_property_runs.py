"""Runs with a property attack: what is written, what a crash leaves, and what wrong files say."""

import pandas as pd
import pytest

from run_files import content, metrics
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.core.errors import InputError
from shoal.property.update_table import PROPERTY_COLUMNS
from shoal.runs.result import report_of
from shoal.runs.run import run

PROPERTY = {
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
    "property_attack": {"mode": "scaled", "period": 3, "trees": 10, "simulated_clients": 3},
}
"""Digits with thick strokes, for which an active attacker looks."""

COUNTING = '''
import pandas as pd
import torch
from shoal.core.settings import Positive, settings
from shoal.metrics.summary import Summary
from shoal.property import PropertyAttackSection

class Counting:
    """Counts the clients of each round."""
    name, columns = "counts", ("round", "clients")

    def check(self, federation, algorithm):
        pass

    def initial_memory(self, state):
        return {}

    def observe(self, before, after, report, memory, training):
        return {"clients": torch.tensor(len(report.cohort))}, memory

    def measure(self, observations, stream, *, jobs):
        rows = [(number, int(kept["clients"])) for number, kept in observations.items()]
        return Summary(overall={"counts.rounds": len(rows)}), pd.DataFrame(rows, columns=self.columns)

@settings
class Section:
    """The shipped federation, with another attack."""
    period: Positive = 5
    attack = property(lambda self: Counting())
    from_simulation = staticmethod(lambda simulation: None)

    def check(self, config):
        pass

    def draw(self, *args):
        return PropertyAttackSection(period=self.period).draw(*args)

    def federation(self, *args):
        return PropertyAttackSection(period=self.period).federation(*args)

    def malicious_clients(self, model, federation):
        return None
'''


@pytest.fixture(scope="module")
def config_of(toy_config):
    return lambda **changes: toy_config(**PROPERTY | changes)


@pytest.fixture(scope="module")
def finished(config_of, tmp_path_factory):
    return run(config_of(), tmp_path_factory.mktemp("runs") / "whole")


def test_property_run_reports_its_updates_and_their_aucs(finished):
    summary = metrics(finished)
    rows = pd.read_csv(finished / "property.csv")
    assert set(PROPERTY_COLUMNS) <= set(rows)
    assert summary["property.updates"] == len(rows)
    assert summary["property.positives"] == rows["present"].sum() == 4
    assert rows.loc[rows["present"] == 1, "round"].tolist() == [3, 6, 9, 12]
    for key in ("property.auc", "property.auc_control", "property.auc_rounds", "main.auc", "main.auc_even"):
        assert 0 <= summary[key] <= 1


class Killed(BaseException):
    pass


def kill_after(number):
    def watch(simulation, progress, report):
        if progress.state.round == number and report is not None:
            raise Killed

    return watch


def without_config(out):
    return {name: data for name, data in content(out).items() if name != "config.toml"}


def test_a_killed_and_resumed_run_is_the_uninterrupted_one(finished, config_of, tmp_path):
    """The malicious client's memory, the last updates and the observations all have to come back."""
    out = tmp_path / "run"
    # Killed between two checkpoints, at round 5, and at one, at round 8.
    for number in (5, 8):
        with pytest.raises(Killed):
            run(config_of(checkpoint__every=4), out, resume=True, watch=kill_after(number))
    run(config_of(checkpoint__every=4), out, resume=True)
    assert "property.csv" in content(out)
    assert without_config(out) == without_config(finished)


def test_a_finished_run_that_is_prolonged_is_the_longer_run(finished, config_of, tmp_path):
    """Its 7 rounds end between two with the property and between two checkpoints."""
    out = run(config_of(algorithm__rounds=7, checkpoint__every=4), tmp_path / "run")
    assert len(pd.read_csv(out / "property.csv")) < len(pd.read_csv(finished / "property.csv"))
    run(config_of(checkpoint__every=4), out, resume=True)
    assert "property.csv" in content(out)
    assert without_config(out) == without_config(finished)


def test_a_damaged_checkpoint_takes_its_observations_with_it(finished, config_of, tmp_path):
    out = tmp_path / "run"
    with pytest.raises(Killed):
        run(config_of(checkpoint__every=3), out, watch=kill_after(8))
    newest = sorted((out / "checkpoint").glob("round-*"))[-1]
    assert newest.name.startswith("round-000008")
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    run(config_of(checkpoint__every=3), out, resume=True)
    assert (out / "property.csv").read_bytes() == (finished / "property.csv").read_bytes()


def test_observations_without_a_checkpoint_are_forgotten(finished, config_of, tmp_path):
    """Killed between the first observations and their checkpoint, and resumed at another interval."""
    out = tmp_path / "run"
    with pytest.raises(Killed):
        run(config_of(checkpoint__every=4), out, watch=kill_after(4))
    for path in (out / "checkpoint").glob("round-*"):
        path.unlink()
    assert list((out / "checkpoint").glob("observations-*"))
    run(config_of(checkpoint__every=5), out, resume=True)
    assert (out / "property.csv").read_bytes() == (finished / "property.csv").read_bytes()


def test_a_passive_attack_has_no_malicious_clients_and_may_begin_at_the_last_round_with_the_property(config_of):
    _, simulation = build(config_of(algorithm__rounds=6, property_attack={"period": 3, "warm_up": 5}))
    assert simulation.malicious_clients is None
    assert simulation.round_attack.warm_up == 5


def test_an_attack_on_rounds_may_be_a_class_that_the_table_names(config_of, tmp_path, monkeypatch):
    """By the door of the shipped one: it draws the federation, observes every round, and has a table of its own."""
    (tmp_path / "counting.py").write_text(COUNTING)
    monkeypatch.syspath_prepend(str(tmp_path))
    out = run(config_of(property_attack={"name": "counting:Section", "period": 4}), tmp_path / "run")
    rows = pd.read_csv(out / "counts.csv")
    assert rows["round"].tolist() == [*range(1, 13)]
    assert rows["clients"].tolist() == [5] * 12
    assert metrics(out)["counts.rounds"] == 12
    assert read_config(out / "config.toml", allow_code=True).property_attack.period == 4
    assert report_of(out, allow_code=True).exists()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data__task": "class"}, "'task' of digits must name a property for a property attack, such as"),
        ({"data__task": "class/thin"}, "thick"),
        ({"data__clients": 2}, "clients'.*got 2"),
        ({"property_attack__gamma": 0.0}, "'property_attack.gamma' must be above 0"),
        ({"property_attack__alpha": 1.2}, "'property_attack.alpha' must be at most 1"),
        ({"property_attack__mode": "sneaky"}, "'property_attack.mode' must be 'passive', 'active' or 'scaled'"),
        ({"property_attack__gama": 3.0}, "did you mean 'gamma'"),
        ({"property_attack__period": 13}, "'algorithm.rounds' must be at least 13"),
        ({"property_attack__period": 5, "property_attack__warm_up": 10}, "'algorithm.rounds' must be at least 15"),
        ({"local__batch_size": 100}, "needs? at least 100"),
        ({"data__groups": {"a": {"share": 0.5}, "b": {"share": 0.5}}}, r"'data\.groups' cannot be combined with"),
    ],
)
def test_wrong_property_configurations_are_one_sentence(config_of, tmp_path, changes, sentence):
    with pytest.raises(InputError, match=sentence) as error:
        run(config_of(**changes), tmp_path / "run")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()
