"""Runs with canaries: their figures and files, from a configuration and from Python, and runs without as before."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from full_simulation import simulate_with
from html_page import page_of
from shoal import DPSGD, Ditto, FedAvg, InputError, LocalSGD, MislabelledCanaries, Model, Stream, load
from shoal.audit.canary_audit import CANARY_COLUMNS, canary_summary, one_run_audit
from shoal.config.build import build, load_data
from shoal.config.schema import parse_config
from shoal.data.content import fingerprint
from shoal.runs.result import report_of
from shoal.runs.run import run


@pytest.fixture(scope="module")
def finished(toy_config, tmp_path_factory):
    """A run of a network that memorises: five canaries of six of ten clients."""
    changes = {"canaries": {"per_client": 5, "clients": 6}, "local__epochs": 20, "local__learning_rate": 0.3}
    config = toy_config(**changes, algorithm__name="ifca", red_team__every=0, red_team__attack="gap")
    return run(config, tmp_path_factory.mktemp("canaries") / "run"), config


def test_a_run_measures_its_canaries(finished):
    out, config = finished
    table, clients = pd.read_csv(out / "canaries.csv"), pd.read_csv(out / "clients.csv")
    summary = json.loads((out / "summary.json").read_text())
    assert tuple(table) == CANARY_COLUMNS
    assert len(table) == 30
    assert table["client"].nunique() == 6
    assert summary["canaries.members"] == table["member"].sum() == clients["canaries"].sum()
    assert summary["canaries.non_members"] == (~table["member"]).sum()
    # Each canary that is left out is one example less.
    out_of = table[~table["member"]]["client"].value_counts()
    assert clients["examples"].tolist() == [12 - out_of.get(client, 0) for client in clients["client"]]
    # The network learns its training examples by heart, so most of the trained canaries stand out.
    assert summary["canaries.auc"] > 0.7
    highest = table[~table["member"]]["score"].max()
    found = table[table["member"] & (table["score"] > highest)]
    assert summary["canaries.found"] == pytest.approx(len(found) / summary["canaries.members"])
    assert clients["canaries_found"].sum() == len(found) > 0
    assert summary["canaries.found.low"] < summary["canaries.found"] < summary["canaries.found.high"]
    # A dozen left-out canaries carry a rate of 10 %, and none of 1 %.
    assert "canaries.tpr_at_fpr_0.1" in summary
    assert "canaries.tpr_at_fpr_0.01" not in summary
    audit = one_run_audit(table["score"].to_numpy(), table["member"].to_numpy(), delta=summary["canaries.delta"])
    assert summary["canaries.epsilon_low"] == pytest.approx(audit.epsilon)
    # The page of the run shows them.
    page = page_of(report_of(out).read_text(encoding="utf-8"))
    low, high = (summary[f"canaries.found.{end}"] for end in ("low", "high"))
    assert f"{low:.3f} to {high:.3f}" in page.text
    assert f"{summary['canaries.epsilon_low']:.3f}" in page.text
    # The scores are those of the final models.
    _, simulation = build(config)
    model, models = simulation.setup.model, load(out).models
    assert simulation.canaries is not None
    for i in (0, 13, 29):
        row = table.iloc[i]
        network = model.network()
        network.load_state_dict(dict(models[int(row["model"])]))
        share = network(simulation.canaries.x[i : i + 1]).softmax(dim=1)[0, int(row["label"])].item()
        assert row["score"] == pytest.approx(np.log(share / (1 - share)), rel=1e-3, abs=1e-3)


def test_results_are_read_back_with_their_canaries(finished):
    loaded = load(finished[0])
    pd.testing.assert_frame_equal(loaded.canaries, pd.read_csv(finished[0] / "canaries.csv"))
    assert loaded.summary.overall["canaries.members"] > 0


def test_no_canaries_are_the_same_federation_and_the_same_figures(toy_config):
    plain, none = toy_config(), toy_config(canaries={"per_client": 0})
    data = load_data(plain.data)
    (_, before), (_, same), (_, other) = (
        build(each, dataset=data) for each in (plain, none, toy_config(canaries={"per_client": 2}))
    )
    assert same.canaries is None
    assert fingerprint(same.federation) == fingerprint(before.federation)
    assert fingerprint(other.federation) != fingerprint(before.federation)
    assert fingerprint(replace(other.federation, clients=before.federation.clients)) == fingerprint(before.federation)
    # The file of a run without canaries is the one that it has always been.
    assert "canaries" not in plain.toml()
    assert parse_config(toy_config(canaries={"per_client": 2}).table(), "").canaries == MislabelledCanaries(2)


@pytest.fixture(scope="module")
def planted(build):
    return MislabelledCanaries(per_client=3).insert(build(), Stream(4))


def simulated(mlp, federation, canaries, **more):
    return simulate_with(federation, mlp, FedAvg(), LocalSGD(batch_size=4), rounds=2, canaries=canaries, **more)


def test_measuring_canaries_changes_nothing_else(mlp, planted):
    federation, canaries = planted
    watched, unwatched = (simulated(mlp, federation, each) for each in (canaries, None))
    assert unwatched.canaries is None
    assert len(watched.canaries) == len(canaries) == 18
    assert torch.equal(watched.state.models, unwatched.state.models)
    assert watched.summary.by_group == unwatched.summary.by_group
    pd.testing.assert_frame_equal(watched.clients[unwatched.clients.columns], unwatched.clients)


def test_personal_models_are_asked_about_their_own_clients_canaries(mlp, planted):
    federation, canaries = planted
    local, private = LocalSGD(batch_size=4), DPSGD(noise_multiplier=1.0, delta=1e-3)
    result = simulate_with(federation, mlp, Ditto(FedAvg()), local, rounds=1, canaries=canaries, defenses=[private])
    assert torch.equal(torch.tensor(result.canaries["model"]), canaries.client)
    assert result.canaries["score"].notna().all()
    # The audit is of the delta that epsilon is of.
    assert result.summary.overall["canaries.delta"] == result.summary.overall["delta"] == 1e-3


def test_clients_that_never_took_part_have_no_scores(mlp, planted):
    federation, canaries = planted
    result = simulated(mlp, federation, canaries, participation=0.0)
    assert (result.canaries["model"] == -1).all()
    assert result.canaries[["score", "exposure"]].isna().all(axis=None)
    overall = result.summary.overall
    assert overall["canaries.members"] == overall["canaries.non_members"] == overall["canaries.epsilon_low"] == 0
    assert "canaries.auc" not in overall
    assert "canaries.found" not in overall


def test_a_directory_holds_one_simulation_with_its_canaries(mlp, planted, tmp_path):
    federation, canaries = planted
    simulated(mlp, federation, canaries, out=tmp_path / "run")
    again = simulated(mlp, federation, canaries, out=tmp_path / "run", resume=True)
    assert len(again.canaries) == 18
    with pytest.raises(InputError, match=r"simulation\.canaries"):
        simulated(mlp, federation, None, out=tmp_path / "run", resume=True)


def test_figures_are_of_the_canaries_with_a_score():
    scores, member = np.arange(60.0), np.arange(60) >= 30
    scores[[0, 59]] = np.nan
    overall = canary_summary(pd.DataFrame({"score": scores, "member": member}), 1e-6).overall
    assert overall["canaries.members"] == overall["canaries.non_members"] == 29
    assert overall["canaries.auc"] == overall["canaries.found"] == 1
    assert overall["canaries.epsilon_low"] == one_run_audit(scores, member, delta=1e-6).epsilon > 1
    assert overall["canaries.delta"] == 1e-6


def test_canaries_of_another_federation_are_refused(mlp: Model, planted, build):
    _, canaries = planted
    with pytest.raises(InputError, match=r"'canaries' .*client 3"):
        simulated(mlp, build((9, 12, 7)), canaries)
