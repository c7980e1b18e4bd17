"""The audit of DP-SGD: its estimate of coins where coins are known, and a tiny audit that catches a fraud."""

from dataclasses import replace

import pandas as pd
import pytest
import torch

from experiment_scripts import experiment_script
from shoal.audit.canary_audit import one_run_audit
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.core.errors import InputError
from shoal.defenses import accounting
from shoal.engine import Engine
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.simulation.play import initial_state, move_to_engine, run_rounds

SMALL = [
    'data.source="digits"', "data.clients=4", "data.examples_per_client=24", "data.test_examples=20",
    "canaries.per_client=12", "algorithm.rounds=4",
]  # fmt: skip


@pytest.fixture(scope="module")
def script():
    return experiment_script("audit/dp")


def updates_of(script, case, *changes, fraction=1.0):
    """A tiny run: the simulation on its engine, and what the server received."""
    _, simulation = build(read_config(script.BASE, [*case.changes(), *SMALL, *changes]))
    simulation = replace(simulation, record_updates=1)
    with Engine(simulation.setup.model, threads=1, backend="loop") as engine, script.too_little_noise(fraction):
        simulation = move_to_engine(simulation, engine)
        start = initial_state(simulation, engine)
        rounds = [report.updates for _, report in run_rounds(simulation, engine, start)]
        return script.server_scores(rounds, simulation, engine), simulation.canaries.member.numpy()


@pytest.mark.parametrize("sampling", ["full", "poisson"])
def test_without_noise_the_server_knows_every_coin(script, sampling):
    """Linear algebra: updates are sums of gradients, so that a wrong batch size, rate or set of examples shows."""
    case = script.Case(script.HONEST, sampling, 1, 0)
    batches = [] if sampling == "full" else ["local.batch_size=9", "algorithm.rounds=12"]
    scores, included = updates_of(script, case, *batches, fraction=1e-5)
    assert included.sum() not in (0, len(included))
    assert scores[included].min() > scores[~included].max()
    if sampling == "full":
        assert scores[included] == pytest.approx(1, abs=0.05)
        assert scores[~included] == pytest.approx(0, abs=0.05)


def test_with_noise_alone_the_server_knows_nothing(script):
    """Estimates stay at 1/2, and prove nothing; of one seed in twenty they may, at a confidence of 95 %."""
    scores, included = updates_of(script, script.Case(script.HONEST, "full", 1, 1), fraction=100.0)
    assert scores == pytest.approx(0.5, abs=0.05)
    assert one_run_audit(scores, included).epsilon == 0


def test_the_fraud_ends_with_the_block(script):
    right = BoundNetwork.private_step
    with script.too_little_noise():
        assert BoundNetwork.private_step is not right
    assert BoundNetwork.private_step is right


@pytest.mark.parametrize("sampling", ["full", "poisson"])
def test_the_multipliers_cost_what_they_are_named_after(script, sampling):
    rate = 1.0 if sampling == "full" else 0.5
    for target, noise in script.NOISE[sampling].items():
        assert accounting.epsilon([(rate, 10)], noise, 1e-5) == pytest.approx(target, rel=0.01)


def test_twenty_runs_are_as_told_and_cover_both_samplings(script):
    honest = [case for case in script.CASES if case.mechanism == script.HONEST]
    assert len(set(honest)) == len(honest) == script.EXPECTED == 20
    assert {case.sampling for case in honest} == {"full", "poisson"}
    assert pytest.approx(1 - 0.05 / 40) == script.FAMILY


def test_no_attacker_proves_more_than_one_without_a_mistake(script):
    included = torch.arange(200).numpy() % 2 == 0
    perfect = one_run_audit(included.astype(float), included, delta=1e-5).epsilon
    assert script.largest(200, 1e-5) == perfect > 3


def test_an_audit_catches_the_fraud_alone_and_is_taken_up_where_it_stopped(script, tmp_path, monkeypatch):
    audited, ran = script.audited, []
    monkeypatch.setattr(script, "audited", lambda case, config: (ran.append(case), audited(case, config))[1])
    cases = [script.Case(mechanism, "full", 1, 0) for mechanism in (script.HONEST, script.BROKEN)]
    # 10 rounds, as the epsilons are for.
    changes = [*SMALL, "data.clients=10", "algorithm.rounds=10"]
    script.audit(tmp_path, cases[:1], changes)
    rows = script.audit(tmp_path, cases, changes).set_index("mechanism")
    assert ran == cases
    assert rows["epsilon"].tolist() == pytest.approx([1, 1], rel=0.01)
    assert rows.loc[script.HONEST, ["server.low", "outsider.low"]].max() < 1
    assert rows.loc[script.BROKEN, "server.low"] > 1
    assert (rows[["server.low", "outsider.low"]].max(axis=1) <= rows["largest"]).all()
    text = (tmp_path / "dp.md").read_text()
    assert "in 0 of 1 runs (family-wise: 0)." in text
    assert "in 1 of 1 runs" in text
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "dp.csv", "dp.md"}
    assert len(pd.read_csv(tmp_path / "dp.csv")) == 2


def test_rounds_of_several_steps_are_refused(script):
    with pytest.raises(InputError, match="got 2 steps a round"):
        updates_of(script, script.Case(script.HONEST, "full", 1, 0), "local.steps=2", "algorithm.rounds=1")


def test_a_wrong_setting_is_one_sentence_and_nothing_is_left(script, tmp_path):
    with pytest.raises(InputError, match="did you mean 'rounds'"):
        script.audit(tmp_path, script.CASES[:1], ["algorithm.roundz=3"])
    assert not list((tmp_path / "runs").iterdir())
