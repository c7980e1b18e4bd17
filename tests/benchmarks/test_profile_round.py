"""A profile of rounds: parts that add up, and hints and reasons that follow from them."""

import json
import sys
from pathlib import Path

import pytest

from shoal import IFCA, FedAvg, Gap, LocalSGD, NormClipping, RedTeam, Simulation
from shoal.engine import Engine
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


def test_what_is_not_done_in_every_round_is_measured_once_and_counts_by_its_share(build, mlp, monkeypatch):
    began, estimate = [], RedTeam.estimate
    monkeypatch.setattr(RedTeam, "estimate", lambda *given: began.append(given[1].round) or estimate(*given))
    found = profiled(build, mlp, every=9, evaluate_every=4)
    assert (found["rounds"], began) == (2, [9])
    assert found["seconds.red_team"] > 0


@pytest.mark.parametrize(
    ("asked", "shares", "expected"),
    [
        ({}, {"choose": 1.0, "evaluation": 0.1}, ["algorithm.choose_by"]),
        ({"algorithm": FedAvg()}, {"choose": 1.0}, []),
        ({}, {"red_team": 2.0, "evaluation": 1.0, "choose": 0.9}, ["red_team.every = 6", "evaluation.every = 2"]),
        ({"backend": "loop"}, {"local_training": 1.0}, ["engine.backend"]),
        ({"cores": 8}, {"local_training": 1.0}, ["engine.threads: 1 of 8 cores"]),
    ],
)
def test_hints_are_of_the_largest_parts_and_of_options_that_there_are(build, mlp, monkeypatch, asked, shares, expected):
    monkeypatch.setattr(profile_round, "cores", lambda: asked.get("cores", 1))
    parts = dict.fromkeys(("choose", "local_training", "defenses", "aggregation", "red_team", "evaluation"), 0.0)
    team = RedTeam(every=3, attack=Gap(), estimator="audit")
    simulation = Simulation(build(), mlp, asked.get("algorithm", IFCA(2)), LOCAL, 20, red_team=team)
    settings = EngineSettings(threads=1, backend=asked.get("backend", "auto"))
    with Engine(mlp, threads=1) as engine:
        found = profile_round.hints(simulation, settings, parts | shares, engine)
    assert len(found) == len(expected)
    assert all(key in hint for hint, key in zip(found, expected, strict=True))


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
