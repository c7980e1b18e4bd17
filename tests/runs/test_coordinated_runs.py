"""Runs with a coordinator: their files, what another coordinator is, and that reference federations obey it too."""

import json
from dataclasses import replace

import pandas as pd
import pytest
import torch

import shoal
from full_simulation import simulate_with
from run_files import content, stop_after
from shoal.control import RecordedDirectives
from shoal.runs.audits.audit_run import audit_run
from shoal.runs.comparison import compare
from shoal.runs.files import read_summary
from shoal.runs.run import run
from shoal.runs.run_description import read_description
from shoal.sweeps.results_table import by_size

ROUNDS = 6
LOCAL = shoal.LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
TEAM = shoal.RedTeam(every=2, estimator="audit", attack=shoal.LossThreshold())
STEERED = {
    "seed": 10,
    "algorithm__rounds": ROUNDS,
    "red_team__estimator": "audit",
    "privacy__thresholds": [0.51, 0.53],
    "coordinator": {"gain": 1.0, "max_cost": 0.006, "augmentation": {"rotation": 10}},
}
"""Changes of the toy run under which directives move at each estimate, and are bounded by what they may cost."""

FROM_THE_FIRST = {"gain": 1.0, "release": 0.0, "prediction": shoal.RiskPrediction()}
"""Under which directives are given before the first round, and never taken back."""


def coordinator(**changes) -> shoal.LimitController:
    knob = shoal.Knob(shoal.L2(changes.pop("penalty", 0.3)))
    return shoal.LimitController({"l2": knob}, **{"gain": 1.0, "target": 0.0, **changes})


def simulated(federation, mlp, **changes):
    settings = {"red_team": TEAM, "coordinator": coordinator(), "rounds": ROUNDS, "algorithm": shoal.IFCA(2)}
    return simulate_with(federation, mlp, local=LOCAL, **settings | changes)


def directives_by_round(rounds: pd.DataFrame, name: str = "l2") -> dict[int, list[float]]:
    return {int(number): own[f"directive.{name}"].tolist() for number, own in rounds.groupby("round")}


@pytest.fixture(scope="module")
def finished(toy_run):
    return toy_run(**STEERED)


@pytest.fixture
def obeyed(monkeypatch):
    """The directives under which federations are trained again, by round; one dictionary for each of them."""
    seen: list[dict[int, dict[str, list[float]]]] = []
    update = RecordedDirectives.update

    def updated(self, state, federation, engine, stream):
        after = update(self, state, federation, engine, stream)
        if not seen or after.round <= max(seen[-1]):
            seen.append({})
        seen[-1][after.round] = {name: values.tolist() for name, values in after.directives.items()}
        return after

    monkeypatch.setattr(RecordedDirectives, "update", updated)
    return seen


def test_python_and_a_file_steer_alike(build, mlp):
    federation = build(threshold=0.51)
    steered, alone = simulated(federation, mlp), simulated(federation, mlp, coordinator=None)
    given = directives_by_round(steered.rounds)
    assert given[1] == [0.0, 0.0], "before the first estimate nothing is asked for"
    assert max(given[ROUNDS]) > 0
    assert not torch.equal(steered.state.models, alone.state.models)
    assert not [name for name in alone.rounds if name.startswith(("directive", "over_limit"))]


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"coordinator": None}, "coordinator"),
        ({"coordinator": coordinator(target=0.5)}, "coordinator"),
        ({"coordinator": coordinator(penalty=0.1)}, "coordinator.l2 = 0.3"),
    ],
    ids=["none", "target", "knob"],
)
def test_another_coordinator_is_another_simulation(build, mlp, tmp_path, changes, word):
    federation, out = build(threshold=0.51), tmp_path / "run"
    simulated(federation, mlp, rounds=2, out=out)
    again = simulated(federation, mlp, rounds=2, out=out, resume=True)
    assert directives_by_round(again.rounds)
    with pytest.raises(shoal.InputError, match=word):
        simulated(federation, mlp, rounds=2, out=out, resume=True, **changes)
    assert read_description(out).coordinator == replace(coordinator(), knobs={})


def test_a_simulation_killed_between_estimates_and_resumed_is_never_killed(build, mlp, tmp_path, obeyed):
    federation = build(threshold=0.51)
    asked = {"coordinator": coordinator(vote_epsilon=1.0), "reference_federations": 2}
    whole = simulated(federation, mlp, out=tmp_path / "whole", **asked)
    directives = directives_by_round(whole.rounds)
    by_references = [{n: given["l2"] for n, given in each.items()} for each in obeyed]
    assert by_references == [{n: directives[n] for n in (2, 4, 6)}] * 2
    assert len({tuple(each) for each in directives.values()}) > 1
    obeyed.clear()
    out = tmp_path / "killed"
    with pytest.raises(KeyboardInterrupt):
        simulated(federation, mlp, out=out, watch=stop_after(3), **asked)
    simulated(federation, mlp, out=out, resume=True, **asked)
    assert content(out) == content(tmp_path / "whole")
    assert [{n: given["l2"] for n, given in each.items()} for each in obeyed] == by_references


def test_a_run_killed_and_resumed_is_never_killed_and_its_audit_obeys_its_directives(
    finished, toy_config, tmp_path, obeyed
):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(toy_config(**STEERED), out, watch=stop_after(3))
    run(toy_config(**STEERED), out, resume=True)
    assert content(out) == content(finished)
    assert not obeyed
    audit_run(out, references=2, out=tmp_path / "audit")
    rounds = shoal.load(finished).rounds
    given = directives_by_round(rounds, "augmentation")
    assert len({tuple(each) for each in given.values()}) > 1
    for each in obeyed:
        assert [each[n]["augmentation"] for n in each] == [pytest.approx(given[n]) for n in each]
    # The run's first rounds and all of them, two federations, and the run itself once more.
    assert sorted(map(max, obeyed))[1:] == [6, 6, 6, 6]


def test_the_summary_has_the_last_directives_and_whose_limits_are_kept(finished):
    flat = json.loads((finished / "summary.json").read_text())
    last = pd.read_csv(finished / "rounds.csv").groupby("cluster").last()
    for k, row in last.iterrows():
        for name in ("directive.augmentation", "over_limit", "limit_unmet"):
            assert flat[f"clusters.{k}.{name}"] == pytest.approx(row[name])
            assert read_summary(finished).by_cluster[k][name] == flat[f"clusters.{k}.{name}"]
        assert isinstance(flat[f"clusters.{k}.limit_unmet"], int)
    assert {f"{size}.directive.augmentation" for size in ("larger", "smaller")} <= set(by_size(flat))
    keys = list(flat)
    assert keys.index("clusters.1.accuracy") < keys.index("clusters.0.over_limit") < keys.index("seconds.total")
    assert not [key for key in keys if key.startswith("coordinator")]


def test_a_comparison_shows_what_was_steered_and_how_far(finished, toy_config, tmp_path):
    alone = run(toy_config(**{key: each for key, each in STEERED.items() if key != "coordinator"}), tmp_path / "alone")
    found = compare([alone, finished])
    titles = list(found.metrics)
    shares = found.metrics.loc["share of members over their limit by cluster"]
    assert shares[titles[0]] == "- / -"
    assert shares[titles[1]].count(".") == 2
    assert found.metrics.loc["directive augmentation by cluster", titles[1]].count(".") == 2
    assert found.settings.loc["coordinator.augmentation.rotation"].tolist() == ["-", "10.0"]


def test_with_steered_noise_no_epsilon_is_stated_and_that_is_said_once(build, mlp, caplog):
    federation, private = build(), shoal.DPSGD(1.0, 0.3)
    knobs = {"dp_sgd": shoal.Knob(private)}
    steered = simulated(federation, mlp, coordinator=shoal.LimitController(knobs, **FROM_THE_FIRST))
    assert max(directives_by_round(steered.rounds, "dp_sgd")[1]) > 0
    assert not {"epsilon", "delta"} & set(steered.summary.overall)
    assert "epsilon" not in steered.clients
    assert caplog.text.count("no epsilon is stated") == 1


def test_epsilon_of_fixed_noise_is_of_all_steps_whatever_a_directive_leaves_out(build, mlp):
    federation, fixed = build(), {"defenses": [shoal.DPSGD(1.0, 0.5)]}
    shorter = shoal.LimitController({"shorter": shoal.Knob(shoal.ShorterTraining(0.25))}, **FROM_THE_FIRST)
    steered = simulated(federation, mlp, coordinator=shorter, **fixed)
    assert max(directives_by_round(steered.rounds, "shorter")[ROUNDS]) > 0
    whole = simulated(federation, mlp, coordinator=None, **fixed)
    assert steered.summary.overall["epsilon"] == whole.summary.overall["epsilon"]


def test_the_log_says_directives_where_they_change(finished):
    log = [line.partition(" INFO ")[2] for line in (finished / "run.log").read_text().splitlines()]
    lines = {int(line.split()[1].rstrip(":")): line for line in log if "clients by cluster" in line}
    given = directives_by_round(pd.read_csv(finished / "rounds.csv"), "augmentation")
    assert len(lines) == ROUNDS
    assert sum("directives" in line for line in lines.values()) >= 2
    for number, line in lines.items():
        words = f"; directives augmentation {', '.join(f'{each:.2f}' for each in given[number])}; "
        assert (words in line) == (number > 1 and given[number] != given[number - 1])
        assert ("directives" in line) == (words in line)


def test_limits_out_of_reach_are_said_once_until_they_can(toy_config, tmp_path):
    # So that members exceed their limit at several consecutive estimates.
    strict = {**STEERED["coordinator"], "audit_factor": 20.0}
    out = run(toy_config(**{**STEERED, "coordinator": strict, "red_team__every": 1}), tmp_path / "strict")
    log, rounds = (out / "run.log").read_text(), pd.read_csv(out / "rounds.csv")
    begins = rounds.groupby("cluster")["limit_unmet"].diff() > 0
    assert begins.sum() > 0
    assert log.count("stays above its members' limits") == begins.sum()


def test_limits_at_chance_are_said_once_to_be_impossible_and_training_goes_on(build, mlp, caplog):
    """Once, although the references train under the same coordinator."""
    result = simulated(build(threshold=0.5), mlp, reference_federations=1)
    said = [record.message for record in caplog.records if "chance level" in record.message]
    assert said == ["the limits of 6 clients are at most 0.5, the chance level: no training meets them"]
    assert result.rounds["round"].max() == ROUNDS
