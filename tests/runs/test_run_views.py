"""Runs whose exposure is a client's or the server's: figures, limits and files say whose they are."""

import json
from dataclasses import replace
from functools import partial

import pandas as pd
import pytest
import torch

import shoal
from full_simulation import simulate_with
from shoal import IFCA, Federation, LocalSGD, LossThreshold, RedTeam, ShadowModels
from shoal.audit.record_table import CHOSEN_OF_VIEW, RecordTable
from shoal.core.errors import InputError
from shoal.data.preferences import VIEWS, views_of
from shoal.replay import reference_store
from shoal.runs.files import read_summary
from shoal.runs.result import load
from shoal.runs.run import run
from shoal.sweeps import read_sweep, run_sweep

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1)
TEAM = RedTeam(every=0, attack=LossThreshold(), shadow_models=ShadowModels(number=2))
SEEN = CHOSEN_OF_VIEW


@pytest.fixture(autouse=True)
def _exact_attacks(monkeypatch):
    """A client recognises 90 % of the records, and the server all, whatever is trained."""

    def scores(attacked, target, references, engine, **_):
        member = target.member.numpy()
        wrong = torch.arange(len(member)).numpy() % 10 == 0
        found = {"client": 1.0 * (member ^ wrong), "server": 1.0 * member}
        of_columns = partial(RecordTable.from_columns, threshold=0.5, exact=True)
        return {SEEN[view]: of_columns(score, view=view) for view, score in found.items()}, {}

    monkeypatch.setattr(reference_store, "view_scores", scores)


def with_views(federation, *views):
    preferences = replace(federation.preferences, view=views_of(list(views), len(federation)))
    return replace(federation, preferences=preferences)


def without_seconds(summary):
    return {key: value for key, value in summary.items() if not key.startswith("seconds.")}


@pytest.mark.parametrize("references", [0, 2])
def test_the_figures_of_a_run_are_of_its_view(build, mlp, references):
    asked = {"rounds": 2, "red_team": TEAM, "reference_federations": references}
    found = {view: simulate_with(build(), mlp, IFCA(2), LOCAL, view=view, **asked) for view in VIEWS}
    for view, result in found.items():
        assert result.summary.view == result.summary["view"] == view
        assert torch.equal(result.state.models, found["outsider"].state.models), "what is measured changes nothing"
        assert ("references" in result.summary.overall) == bool(references)
        assert "view" not in result.clients, "no limit names one"
    for group, metrics in found["server"].summary.by_group.items():
        assert metrics["mia"] == metrics["mia_auc"] == metrics["mia_by_span"] == metrics["exposure"] == 1
        seen = found["client"].summary.by_group[group]
        assert 0.8 < seen["mia"] < 1
        assert "mia_by_span" not in seen
        assert not any("span" in key for key in found["outsider"].summary.by_group[group])
    assert (found["server"].clients["attack"] == SEEN["server"]).all()
    assert (found["server"].clients["exceeded"] == (found["server"].clients["threshold"] < 1)).all()


def test_an_outsider_s_figures_are_those_of_a_run_that_names_no_view(build, mlp):
    asked = {"rounds": 2, "red_team": TEAM, "reference_federations": 2}
    plain, named = build(), with_views(build(), *["outsider"] * len(build()))
    before, after = (simulate_with(federation, mlp, IFCA(2), LOCAL, **asked) for federation in (plain, named))
    assert without_seconds(before.summary) == without_seconds(after.summary)
    pd.testing.assert_frame_equal(before.clients, after.clients.drop(columns="view"))


def test_a_client_s_limit_is_judged_by_the_view_that_it_names(build, mlp, tmp_path):
    federation = build()
    views = [VIEWS[i % 3] for i in range(len(federation))]
    asked = {"rounds": 2, "red_team": TEAM}
    mixed = simulate_with(with_views(federation, *views), mlp, IFCA(2), LOCAL, **asked)
    pure = {view: simulate_with(federation, mlp, IFCA(2), LOCAL, view=view, **asked).clients for view in VIEWS}
    assert mixed.clients["view"].tolist() == views
    columns = ["mia", "violated", "exposure", "exposure_low", "exposure_null_high", "exceeded"]
    for i, view in enumerate(views):
        assert mixed.clients.loc[i, columns].equals(pure[view].loc[i, columns]), (i, view)
    outsider = simulate_with(federation, mlp, IFCA(2), LOCAL, view="outsider", **asked).summary.by_group
    for group, metrics in mixed.summary.by_group.items():
        inside = mixed.clients[mixed.clients["group"] == group]
        assert metrics["violations"] == inside["violated"].sum()
        assert metrics["mia"] <= max(1, outsider[group]["mia"])
    again = load(mixed.save(tmp_path / "run"))
    assert again.clients["view"].tolist() == views
    assert again.summary.view == "outsider"


def test_a_configuration_names_the_views_of_figures_and_limits(toy_config, tmp_path):
    config = toy_config(evaluation__view="server", privacy__view="client")
    out = run(config, tmp_path / "run")
    assert json.loads((out / "summary.json").read_text())["view"] == read_summary(out).view == "server"
    clients = pd.read_csv(out / "clients.csv")
    assert (clients["view"] == "client").all()
    assert (clients["attack"] == SEEN["client"]).all()
    written = shoal.read_config(out / "config.toml")
    assert written.evaluation.view == "server"
    assert written.privacy.view == "client"
    assert 'view = "server"' in (out / "config.toml").read_text()


def test_exposures_of_different_views_are_not_compared(build, mlp, tmp_path):
    results = [simulate_with(build(), mlp, IFCA(2), LOCAL, rounds=1, red_team=TEAM, view=view) for view in VIEWS]
    compared = shoal.compare(results)
    assert compared.metrics.loc["view of exposure"].tolist() == [*VIEWS]
    for sentence, whose in zip(compared.sentences, ("another client", "the server"), strict=False):
        said = f"measures the exposure to {whose} (against an outsider), so exposure and limits are not compared"
        assert said in sentence
        assert "MIA accuracy" not in sentence
        assert "exceeds the limits" not in sentence
    same = shoal.compare([results[1], results[1]]).sentences[0]
    assert "so exposure and limits are not compared" not in same
    assert "MIA accuracy" in same
    page = results[2].report(tmp_path / "report.html").read_text()
    assert "Exposure on this page is to <em>the server</em>" in page
    assert "view: server" in page


def test_a_sweep_says_whose_exposure_its_runs_measure(toy_sweep, tmp_path):
    text = """base = "base.toml"
seeds = [0]
[grid]
"evaluation.view" = ["outsider", "server"]
[tables.exposed]
y = ["exceeded.total", "accuracy.overall"]
rows = ["evaluation.view"]
"""
    out = tmp_path / "swept"
    run_sweep(read_sweep(toy_sweep(tmp_path, text)), out)
    assert pd.read_csv(out / "results.csv")["view"].tolist() == ["outsider", "server"]
    said = "Exposure and limits are about an outsider and the server; across attackers, differences do not compare"
    assert said in (out / "report.html").read_text()
    assert said in (out / "tables" / "exposed.md").read_text()


def test_a_coordinator_calls_no_model_safe_whose_records_a_view_recognises(build, mlp):
    """Of two clients alike in all else, the one whose limit is about the server says that it is exceeded."""
    team = RedTeam(every=1, estimator="audit", attack=LossThreshold())
    law = shoal.LimitController({"l2": shoal.Knob(shoal.L2(0.1))}, gain=1.0, target=0.0)
    federation = build(threshold=0.85)
    views = ["server" if i % 2 else "outsider" for i in range(len(federation))]
    asked = {"rounds": 2, "red_team": team, "coordinator": law}
    found = {
        name: simulate_with(given, mlp, shoal.FedAvg(), LOCAL, **asked, **more)
        for name, given, more in (
            ("outsider", federation, {}),
            ("server", federation, {"view": "server"}),
            ("mixed", with_views(federation, *views), {}),
        )
    }
    shares = {name: result.rounds["over_limit"].tolist() for name, result in found.items()}
    assert shares == {"outsider": [0, 0], "server": [1, 1], "mixed": [0.5, 0.5]}
    assert found["outsider"].rounds["directive.l2"].tolist() == [0, 0]
    assert min(found["server"].rounds["directive.l2"]) > 0
    hidden = simulate_with(build(sizes=(60,) * 6, threshold=0.85), mlp, shoal.FedAvg(), LOCAL, view="server", **asked)
    assert hidden.rounds["over_limit"].tolist() == [0, 0], "the rule says nothing of so many records in so small layers"


def test_what_cannot_be_repeated_has_no_wider_view(build, mlp):
    with pytest.raises(InputError, match="'view' must be 'outsider', 'client' or 'server'"):
        simulate_with(build(), mlp, IFCA(2), LOCAL, rounds=1, view="insider")
    tiny = Federation.from_tensors([(torch.rand(2, 3), torch.tensor([0, 1]))] * 2, test=(torch.rand(1, 3), [0]))
    model = shoal.Model(lambda: torch.nn.Linear(3, 2))
    with pytest.raises(InputError, match=r"'view' = \"client\" needs at least 2 training examples"):
        simulate_with(tiny, model, IFCA(1), LOCAL, rounds=1, view="client")


def test_a_view_of_which_nothing_was_measured_is_said(build, mlp, monkeypatch, caplog):
    monkeypatch.setattr(reference_store, "view_scores", lambda *_, **__: ({}, {}))
    found = simulate_with(build(), mlp, IFCA(2), LOCAL, rounds=1, red_team=TEAM, view="server")
    assert "no attack of the server could be measured on this run" in caplog.text
    assert found.summary.view == "server"
