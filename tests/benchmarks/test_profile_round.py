"""A profile of rounds: parts that add up, and hints and reasons that follow from them."""

import json
import sys
from pathlib import Path

import pytest

from shoal import IFCA, Gap, LocalSGD, NormClipping, RedTeam, Simulation
from shoal.simulation.play import EngineSettings

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import profile_round

ONE, LOCAL = EngineSettings(threads=1), LocalSGD(batch_size=6)


def profiled(build, model, every, rounds=2, **more):
    team = RedTeam(every=every, estimator="audit", attack=Gap())
    simulation = Simulation(build(), model, IFCA(2), LOCAL, 20, red_team=team, **more)
    return profile_round.profile(simulation, ONE, rounds=rounds)


def test_the_parts_of_a_round_add_up_and_none_is_counted_twice(build, mlp):
    found = profiled(build, mlp, every=0, defenses=[NormClipping(1.0)])
    parts = {key.partition(".")[2]: value for key, value in found.items() if key.startswith("seconds.")}
    assert parts.pop("total") == pytest.approx(sum(parts.values()))
    assert set(parts) == {"choose", "local_training", "defenses", "aggregation", "red_team", "evaluation"}
    assert sum(value for key, value in found.items() if key.startswith("share.")) == pytest.approx(1)


def test_the_script_prints_a_table_or_a_document_and_writes_nothing(toy_config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "toy.toml"
    path.write_text(toy_config(algorithm__name="ifca", engine__threads=1).toml())
    assert profile_round.main([str(path), "--rounds", "1"]) == 0
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("local training", "Medians of 1 round;", "Backend 'vmap'"))
    assert profile_round.main([str(path), "--rounds", "1", "--json", "--set", "engine.backend=loop"]) == 0
    assert json.loads(capsys.readouterr().out)["backend"] == "loop"
    assert profile_round.main([str(path), "--rounds", "0"]) == 2
    assert capsys.readouterr().err == "Error: 'rounds' must be at least 1; got 0\n"
    assert list(tmp_path.iterdir()) == [path]
