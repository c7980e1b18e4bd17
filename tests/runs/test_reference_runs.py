"""Runs that are judged by their strongest attack, with reference federations of their own."""

import json
import math

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from full_simulation import simulate_with
from run_files import count_references, metrics
from shoal import IFCA, Ditto, FedAvg, Federation, LocalSGD, LossThreshold, RedTeam, ShadowModels, simulate
from shoal.core.errors import InputError
from shoal.metrics.summary import flatten, parse_summary
from shoal.runs.audits.audit_run import audit_run
from shoal.runs.checkpoint import load_checkpoint
from shoal.runs.comparison import compare
from shoal.runs.files import read_summary
from shoal.runs.run import run

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1)
TEAM = RedTeam(every=0, attack=LossThreshold(), shadow_models=ShadowModels(number=2))
R = 3


@pytest.fixture(scope="module")
def judged(toy_run):
    """A run of clients that heed risk, with R reference federations."""
    return toy_run(evaluation__reference_federations=R)


@pytest.fixture(scope="module")
def plain(toy_run):
    """The same run without them."""
    return toy_run()


def read(out):
    return json.loads((out / "summary.json").read_text())


def attacks_of(summary, group):
    return {key for key in summary.by_group[group] if key.startswith("mia_by_")}


def test_judging_a_run_changes_nothing_of_it(plain, judged):
    for name in ("rounds.csv", "models.safetensors", "roc.csv", "samples.safetensors"):
        assert (plain / name).read_bytes() == (judged / name).read_bytes(), name
    before, after = (load_checkpoint(out / "checkpoint") for out in (plain, judged))
    for name in ("models", "risks", "assignment", "trained"):
        assert torch.equal(getattr(before.state, name), getattr(after.state, name)), name
    assert pd.DataFrame(before.rows).equals(pd.DataFrame(after.rows))
    assert not (plain / "references").exists()
    known = {
        "mia",
        "mia_low",
        "mia_high",
        "mia_null_high",
        "mia_auc",
        "tpr_at_fpr_0.01",
        "tpr_at_fpr_0.001",
        "members",
        "non_members",
    }
    known |= {"violations", "exceeded", "exposure"}
    with_references = metrics(judged)
    for key, value in metrics(plain).items():
        if key.split(".")[0] not in known and not key.startswith("clusters."):
            assert with_references[key] == value, key
    assert not [key for key in read(plain) if key.startswith(("references", "seconds.references", "mia_by_"))]


def test_its_figures_are_those_of_an_audit_which_trains_nothing_again(judged, tmp_path, monkeypatch):
    trained = count_references(monkeypatch)
    monkeypatch.setattr("shoal.reports.audit.audit_page.audit_page", lambda *_, **__: "")
    audit, summary = audit_run(judged, references=R, out=tmp_path), read(judged)
    rows = audit.audit.attacks[audit.audit.attacks["view"] == "outsider"]
    groups, models = rows[rows["scope"] == "group"], rows[rows["scope"] == "model"]
    assert len(groups) > 20
    assert not trained
    for row in groups.to_dict("records"):
        assert summary[f"mia_by_{row['attack'].replace('-', '_')}.{row['name']}"] == row["accuracy"]
    for name in groups["name"].unique():
        strongest = audit.audit.headline("outsider", "group", name)
        assert summary[f"mia.{name}"] == strongest["accuracy"]
        assert summary[f"mia_auc.{name}"] == strongest["auc"]
        assert summary[f"members.{name}"] == strongest["members"]
        assert math.isnan(strongest["tpr_at_fpr_0.01"])
        assert f"tpr_at_fpr_0.01.{name}" not in summary, "where the strongest has too few, no other attack's is taken"
    clients = pd.read_csv(judged / "clients.csv")
    for k in models["name"].unique():
        decides = audit.audit.headline("outsider", "model", k)["accuracy"]
        assert summary[f"clusters.{k}.mia"] == decides
        assert (clients.loc[clients["cluster"] == int(k), "mia"] == decides).all()
    assert summary["violations.total"] == (clients["mia"] > clients["threshold"]).sum() == clients["violated"].sum()
    assert set(clients["attack"]) <= set(rows["attack"])
    assert summary["references"] == R
    assert summary["seconds.references"] > 0


def test_a_run_that_was_killed_between_two_reference_federations_goes_on(toy_config, judged, tmp_path, monkeypatch):
    out, config = tmp_path / "run", toy_config(evaluation__reference_federations=R)
    count_references(monkeypatch, stop_at=1)
    with pytest.raises(KeyboardInterrupt):
        run(config, out)
    assert not (out / "summary.json").exists()
    assert [path.name for path in (out / "references").iterdir()] == ["000.safetensors"]
    trained = count_references(monkeypatch)
    watched = []
    run(config, out, resume=True, watch_references=lambda done, count: watched.append((done, count)))
    assert trained == [1, 2]
    assert watched == [(1, 3), (2, 3), (3, 3)]
    assert metrics(out) == metrics(judged)
    assert (out / "clients.csv").read_bytes() == (judged / "clients.csv").read_bytes()
    assert "reference federation 3 of 3" in (out / "run.log").read_text()


def test_its_summary_is_the_same_once_read(judged):
    flat = read(judged)
    assert flatten(parse_summary(flat)) == flat
    assert list(flatten(parse_summary(flat))) == list(flat)
    names = list(flat)
    assert names.index("references") < names.index("mia.minority") < names.index("mia_by_gap.minority")
    assert names.index("mia_by_gap.minority") < names.index("mia.majority")
    assert parse_summary(flat).overall["references"] == R


def test_a_comparison_says_that_the_attacks_are_others(plain, judged):
    comparison = compare([plain, judged])
    assert comparison.settings.loc["evaluation.reference_federations"].tolist() == ["0", "3"]
    assert comparison.metrics.loc["reference federations"].tolist() == ["-", "3"]
    assert "has 3 reference federations (against 0), so the attacks on both differ" in (comparison.sentences[0])
    assert "reference federations" not in " ".join(compare([judged, judged]).sentences)


def test_from_python_too(mlp, build, tmp_path):
    settings = {"rounds": 2, "red_team": TEAM, "reference_federations": 2}
    memory = simulate_with(build(), mlp, IFCA(2), LOCAL, **settings)
    kept = simulate_with(build(), mlp, IFCA(2), LOCAL, **settings, out=tmp_path / "run")
    assert memory.clients.equals(kept.clients)
    assert {path.name for path in (tmp_path / "run" / "references").iterdir()} == {"000.safetensors", "001.safetensors"}
    assert read_summary(tmp_path / "run").overall["references"] == 2
    again = settings | {"reference_federations": 1}
    with pytest.raises(InputError, match="reference_federations = 2"):
        simulate_with(build(), mlp, IFCA(2), LOCAL, **again, out=tmp_path / "run", resume=True)


def test_one_reference_federation_allows_few_attacks_and_one_model_no_others(mlp, build):
    results = [
        simulate(build(), mlp, FedAvg(), LOCAL, rounds=2, red_team=TEAM, reference_federations=number)
        for number in (1, 2)
    ]
    without_enough = {"mia_by_loss", "mia_by_calibration", "mia_by_rmia_offline", "mia_by_loss_threshold", "mia_by_gap"}
    one, two = (attacks_of(each.summary, "rows") for each in results)
    assert one == without_enough | {"mia_by_label_only", "mia_by_boundary_distance"}
    assert two == one | {"mia_by_rmia"}
    for each, beforehand in zip(results, ("mia_by_rmia_offline", "mia_by_rmia"), strict=True):
        metrics = each.summary.by_group["rows"]
        assert metrics["mia"] == metrics[beforehand], "of some 28 records no other is certain to be stronger"
        assert 0.5 <= metrics["mia_null_high"] < 0.75


def test_clients_with_models_of_their_own_are_attacked_on_these(mlp, build):
    settings = {"rounds": 2, "red_team": TEAM}
    plain = simulate_with(build(), mlp, Ditto(), LOCAL, **settings)
    result = simulate_with(build(), mlp, Ditto(), LOCAL, **settings, reference_federations=2)
    assert result.clients["exposure"].notna().all()
    assert result.clients["mia"].nunique() > 1
    assert (result.clients["violated"] == (result.clients["mia"] > result.clients["threshold"])).all()
    # The clusters' models are nobody's own: the configured attack measures them, as without.
    assert result.summary.by_cluster[0]["mia"] == plain.summary.by_cluster[0]["mia"]
    of_group = result.summary.by_group["rows"]
    assert of_group["mia"] == of_group["mia_by_rmia"]
    assert of_group["mia_auc"] != plain.summary.by_group["rows"]["mia_auc"]


def test_canaries_and_private_steps_go_together_with_them(toy_config, tmp_path):
    asked = {
        "canaries": {"per_client": 4, "clients": 6},
        "defenses": {"dp_sgd": {"max_grad_norm": 1.0, "noise_multiplier": 1.0}},
        "algorithm__name": "ifca",
        "algorithm__rounds": 2,
    }
    plain = read(run(toy_config(**asked), tmp_path / "plain"))
    judged = read(run(toy_config(**asked, evaluation__reference_federations=1), tmp_path / "judged"))
    same = [key for key in plain if key.startswith(("epsilon", "delta", "canaries"))]
    assert len(same) > 5
    assert {key: judged[key] for key in same} == {key: plain[key] for key in same}
    assert judged["references"] == 1
    models = (load_file(tmp_path / name / "models.safetensors") for name in ("plain", "judged"))
    assert all(torch.equal(*pair) for pair in zip(*(each.values() for each in models), strict=True))


def test_where_nobody_trains_no_reference_federation_is(mlp, build, caplog):
    result = simulate(build(), mlp, FedAvg(), LOCAL, rounds=1, participation=0.0, reference_federations=2)
    assert "no reference federation is trained" in caplog.text
    assert "references" not in result.summary.overall


def test_without_test_examples_like_the_training_examples_there_is_nothing_to_exchange(mlp):
    x = torch.zeros(4, 1, 6, 6)
    zeros, ones = torch.zeros(4, dtype=torch.int64), torch.ones(4, dtype=torch.int64)
    federation = Federation.from_tensors([(x, zeros), (x, zeros)], test=(x, ones), classes=3)
    with pytest.raises(InputError, match=r"at least 2 training examples .*got 0"):
        simulate(federation, mlp, FedAvg(), LOCAL, rounds=1, reference_federations=2)
