"""Rounds by secure sums: the server's and the nodes' programs, in one process, against the simulation."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.defenses import accounting
from shoal.engine import ClientUpdate
from shoal_flower.client.client_app import require_plain
from shoal_flower.client.policy import Ledger
from shoal_flower.messages import Offer
from shoal_flower.secure_sums import participant
from shoal_flower.secure_sums.contributions import numbers_of, summed_update, update_block
from shoal_flower.secure_sums.protocol_messages import RefusedError
from sums_in_process import TABLE, Nodes, served
from wire_federation import rows_of, simulated


@pytest.mark.usefixtures("_unrendered_figures")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": {"name": "fedavg", "rounds": 3}, "red_team": {"every": 0}},
        {"algorithm": {"name": "hypcluster", "rounds": 3}, "red_team": {"every": 0}},
        {"algorithm": {"name": "fedopt", "rounds": 3, "base": {"name": "ifca"}}, "red_team": {"every": 0}},
        {"algorithm": {"name": "ditto", "rounds": 3}, "red_team": {"every": 0}},
    ],
)
def test_a_run_by_secure_sums_is_the_simulation_but_for_rounding(tmp_path, changes):
    table = {**TABLE, **changes}
    state, expected = served(tmp_path, Nodes(tmp_path), table), simulated(table)
    assert (state.models - expected.models).abs().max() < 1e-5
    assert torch.bincount(state.assignment).tolist() == torch.bincount(expected.assignment).tolist()
    assert (state.risks - expected.risks).abs().max() < 0.02
    sums = rows_of(tmp_path / "run" / "sums.csv")
    assert [int(row["clients"]) for row in sums if row["round"] == "3"] == torch.bincount(expected.assignment).tolist()
    assert {"cluster", "examples"}.isdisjoint(rows_of(tmp_path / "run" / "clients.csv")[0])


def test_nothing_that_the_server_is_sent_or_keeps_is_of_one_client(tmp_path):
    nodes = Nodes(tmp_path)
    served(tmp_path, nodes, {**TABLE, "algorithm": {"name": "ifca", "rounds": 1}, "red_team": {"every": 0}})
    assert all(set(reply) <= {"secure", "blocks", "refusal"} for reply in nodes.seen)
    kept = {path.name for path in (tmp_path / "run").iterdir()}
    assert "sums.csv" in kept
    assert (tmp_path / "0" / "secure-sums").stat().st_mode & 0o077 == 0
    assert not (tmp_path / "0" / "secure-sums" / "sum.json").exists(), "secrets of a sum that is over are forgotten"


def test_histograms_are_added_up_too_and_estimate_the_risk_of_each_half_by_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(participant, "half_of", lambda name, sharers, _: sorted(sharers).index(name) % 2)
    team = {"every": 1, "estimator": "histogram", "attack": "loss-threshold", "histogram_epsilon": 50.0}
    (tmp_path / "policy.toml").write_text("histogram_epsilon = inf\n")
    nodes = Nodes(tmp_path, keys={"policy": str(tmp_path / "policy.toml")})
    state = served(tmp_path, nodes, {**TABLE, "red_team": team, "algorithm": {"name": "fedavg", "rounds": 2}})
    sums = [row for row in rows_of(tmp_path / "run" / "sums.csv") if row["kind"] == "histograms"]
    assert all(row["opened"] == "1" for row in sums)
    assert {row["round"] for row in sums} == {"1", "2"}
    # 20 training and 10 hold-out examples of each client; with epsilon 50 the noise is 0.
    assert [int(row["examples"]) for row in sums] == [30 * int(row["clients"]) * int(row["opened"]) for row in sums]
    assert nodes.refusals == []
    assert any(risk != 0.5 for risk in state.risks.tolist())


@pytest.mark.parametrize("stage", ["opening", "roster", "delivery", "members", "transcript"])
def test_a_node_that_falls_silent_in_a_round_is_missed_and_the_round_goes_on(tmp_path, stage):
    nodes = Nodes(tmp_path, silent={5: f"1 {stage}"})
    fast = {"algorithm": {"name": "ifca", "rounds": 1}, "red_team": {"every": 0}}
    (tmp_path / "policy.toml").write_text("sum_threshold = 0.5\n")
    nodes.keys = {"policy": str(tmp_path / "policy.toml")}
    served(tmp_path, nodes, {**TABLE, **fast, "secure_aggregation": {"min_clients": 2, "threshold": 0.5}})
    events = [row for row in rows_of(tmp_path / "run" / "events.csv") if row["kind"] != "joined"]
    assert [(row["kind"], row["round"], row["client"]) for row in events] == [("missed", "1", "partition-5")]
    assert stage in events[0]["reason"]
    counted = sum(int(row["clients"]) for row in rows_of(tmp_path / "run" / "sums.csv"))
    assert counted == (6 if stage in ("members", "transcript") else 5)


def test_a_round_of_too_few_nodes_opens_nothing_and_the_next_one_goes_on(tmp_path):
    nodes = Nodes(tmp_path, silent=dict.fromkeys(range(3), "1 delivery"))
    served(tmp_path, nodes, {**TABLE, "algorithm": {"name": "ifca", "rounds": 2}, "red_team": {"every": 0}})
    assert {row["round"] for row in rows_of(tmp_path / "run" / "sums.csv")} == {"2"}
    assert [row["clients"] for row in rows_of(tmp_path / "run" / "rounds.csv") if row["round"] == "1"] == ["0", "0"]
    (failed,) = [row for row in rows_of(tmp_path / "run" / "events.csv") if row["kind"] == "failed"]
    assert failed["reason"] == "3 clients sent their numbers, and 5 are needed; nothing is opened"


def test_a_small_cluster_stays_as_it_is(tmp_path):
    table = {**TABLE, "red_team": {"every": 1, "shadow_models": 2}, "secure_aggregation": {"min_clients": 4}}
    state = served(tmp_path, Nodes(tmp_path), table)
    sums = rows_of(tmp_path / "run" / "sums.csv")
    assert {row["opened"] for row in sums if int(row["clients"]) < 4} == {"0"}
    assert {row["opened"] for row in sums if int(row["clients"]) >= 4} == {"1"}
    assert {row["examples"] for row in sums if row["opened"] == "0"} == {"0"}
    assert int((state.assignment >= 0).sum()) in (0, 4, 5, 6)


@pytest.mark.parametrize(("seen", "lost"), [(40, False), (50, True)])
def test_a_run_that_goes_on_after_a_kill_is_the_same_unless_its_sum_was_answered(tmp_path, seen, lost):
    nodes = Nodes(tmp_path)
    two = {**TABLE, "algorithm": {"name": "ifca", "rounds": 2}, "red_team": {"every": 0}}
    whole = served(tmp_path / "whole", Nodes(tmp_path / "whole"), two)

    class KilledError(Exception):
        pass

    ask = nodes.ask

    def killing(question, messages, awaited, seconds, group):
        if group == "2" and len(nodes.seen) >= seen:
            raise KilledError
        yield from ask(question, messages, awaited, seconds, group)

    nodes.ask = killing
    with pytest.raises(KilledError):
        served(tmp_path, nodes, two)
    nodes.ask = ask
    if lost:
        # A node answers one sum a round, so this round stays without one.
        with pytest.raises(InputError, match="no update was merged"):
            served(tmp_path, nodes, two)
        assert set(nodes.refusals) == {"the sum of round 2 of this configuration was answered already"}
        return
    state = served(tmp_path, nodes, two)
    assert torch.equal(state.models, whole.models)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algorithm": {"name": "cfl", "rounds": 3}}, "'algorithm.name' must be an algorithm whose clients choose"),
        ({"algorithm": {"name": "fedsoft", "rounds": 3}}, "fedsoft"),
        ({"algorithm": {"name": "multi-krum", "rounds": 3}}, "(got multi-krum)"),
        ({"defenses": {"max_update_norm": 1.0}}, "norm_clipping] is not allowed"),
        ({"coordinator": {"augmentation": {}}}, "[coordinator] is not allowed"),
        (
            {
                "defenses": {"dp_sgd": {"noise_multiplier": 1.0, "noise": "sum", "min_clients": 5}},
                "local": {"batch_size": "all", "steps": 1},
            },
            "'secure_aggregation.min_clients' must be at least 'defenses.dp_sgd.min_clients' = 5",
        ),
    ],
)
def test_what_sums_cannot_do_is_refused_before_anybody_is_asked(tmp_path, changes, sentence):
    with pytest.raises(InputError) as error:
        served(tmp_path, Nodes(tmp_path, numbers=()), {**TABLE, "red_team": {"every": 1}, **changes})
    assert sentence in str(error.value)


@pytest.mark.parametrize(
    ("keys", "refusal"),
    [
        ({"min-clients": 3}, "'min_clients' must be at least 3 (got 2)"),
        ({"node-key": "missing"}, "missing: is not an OpenSSH private key"),
    ],
)
def test_a_node_that_asks_for_more_takes_no_part(tmp_path, keys, refusal):
    nodes = Nodes(tmp_path, keys=keys)
    with pytest.raises(InputError, match="no update was merged"):
        served(tmp_path, nodes, {**TABLE, "algorithm": {"name": "ifca", "rounds": 1}, "red_team": {"every": 0}})
    assert len(nodes.refusals) == 6
    assert refusal in nodes.refusals[0]


def test_a_single_update_is_given_neither_in_a_run_of_sums_nor_by_a_node_of_sums(tmp_path):
    offer = Offer(1, 0, parse_config(TABLE, "test").toml(), torch.zeros(2, 5), torch.zeros(2))
    node = Nodes(tmp_path).settings_of(0)
    with pytest.raises(InputError, match=r"a run with .secure_aggregation. allows only secure sums"):
        require_plain(offer, node)
    plain = {name: table for name, table in TABLE.items() if name != "secure_aggregation"}
    offer = replace(offer, config=parse_config(plain, "test").toml())
    assert require_plain(offer, node) is offer
    (tmp_path / "keys").touch()
    for keys in ({"secure-aggregation": "required"}, {"peer-keys": str(tmp_path / "keys")}):
        with pytest.raises(InputError, match="'secure-aggregation' allows only secure sums"):
            require_plain(offer, Nodes(tmp_path, keys=keys).settings_of(0))


PROMISE = {
    "algorithm": {"name": "fedavg", "rounds": 2},
    "local": {"batch_size": "all", "steps": 1},
    "red_team": {"every": 0},
    "defenses": {"dp_sgd": {"noise_multiplier": 2.0, "noise": "sum", "min_clients": 4}},
    "secure_aggregation": {"min_clients": 4},
}


def test_noise_in_shares_gives_the_server_a_clients_epsilon_and_ledgers_say_so(tmp_path):
    table = {**TABLE, **PROMISE}
    state = served(tmp_path, Nodes(tmp_path), table)
    # Noise by the run's seed, so that it is the simulation's.
    assert (state.models - simulated(table).models).abs().max() < 1e-5
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    expected = accounting.gaussian_epsilon((2 / (2.0**2 * 3 / 4)) ** 0.5, 1e-5)
    assert summary["epsilon.server"] == summary["epsilon.client"] == summary["epsilon"] == pytest.approx(expected)
    assert summary["epsilon.outsider"] < summary["epsilon.client"]
    for i in range(6):
        ((noise, rate, steps),) = Ledger.load(tmp_path / str(i) / "ledger.json").steps
        assert (noise, rate, steps) == (pytest.approx(2.0 * (3 / 4) ** 0.5), 1.0, 2)


def test_a_share_of_noise_is_never_clipped_and_no_failure_says_how_large_it_was():
    config = parse_config({**TABLE, **PROMISE, "secure_aggregation": {"min_clients": 4, "max_update_norm": 1e-3}}, "x")
    update = ClientUpdate(0, 20, torch.tensor([0.003, 0.0, -0.004]))
    block = update_block(update, torch.zeros(2, 3), config, clients=6)
    numbers = numbers_of(config, 6)
    assert numbers.decode(block[1:]).tolist() == pytest.approx([0.06, 0.0, -0.08], rel=1e-3)
    with pytest.raises(RefusedError, match="the norm of a mean update"):
        summed_update(block, 1, config, 6)


def test_an_update_above_the_norm_is_clipped_by_its_client(tmp_path):
    table = {**TABLE, "algorithm": {"name": "fedavg", "rounds": 1}, "red_team": {"every": 0}}
    free = served(tmp_path / "free", Nodes(tmp_path / "free"), table)
    clipped = {**table, "secure_aggregation": {"min_clients": 2, "max_update_norm": 1e-2}}
    state = served(tmp_path, Nodes(tmp_path), clipped)
    (row,) = rows_of(tmp_path / "run" / "sums.csv")
    (other,) = rows_of(tmp_path / "free" / "run" / "sums.csv")
    assert float(row["norm"]) <= 1e-2 < float(other["norm"])
    assert not torch.equal(state.models, free.models)


def test_an_update_that_is_not_finite_counts_as_none_and_a_sum_that_no_honest_clients_send_is_refused():
    config, models = parse_config(TABLE, "test"), torch.zeros(2, 3)
    broken = update_block(ClientUpdate(0, 20, torch.tensor([0.0, float("nan"), 0.0])), models, config, clients=6)
    assert broken.tolist() == [20, 0, 0, 0]
    block = update_block(ClientUpdate(0, 20, torch.tensor([3.0, 0.0, 4.0])), models, config, clients=6)
    assert summed_update(block * np.uint32(2), 2, config, 6)[0] == 40
    assert summed_update(block * np.uint32(2), 2, config, 6)[1].tolist() == pytest.approx([3.0, 0.0, 4.0], abs=1e-6)
    for times, examples in ((0, 0), (1001, 20020)):
        with pytest.raises(RefusedError, match=f"{examples} examples from 2 clients"):
            summed_update(block * np.uint32(times), 2, config, 6)
