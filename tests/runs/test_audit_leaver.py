"""`shoal audit RUN --left CLIENT`: a planted memory is found, exact forgetting passes, and its files and refusals."""

import json
import re

import pandas as pd
import pytest

from shoal.audit.audit import wrong_sign
from shoal.cli.app import main
from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.replay.leaver_federations import LeaverRun
from shoal.runs.audits.audit_leaver import OTHER_COLUMNS, audit_leaver
from shoal.runs.audits.gate import parse_gates
from shoal.runs.run import run
from unrendered import unrendered_figures

DATA = {"source": "digits", "clients": 5, "examples_per_client": 20, "test_examples": 400, "shadow_examples": 50}
TABLE = {
    "data": DATA,
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg", "rounds": 4},
    # The leaver's last round is an overfit that the others' only round after it cannot hide.
    "local": {"epochs": 10, "batch_size": 5, "learning_rate": 0.1},
    "red_team": {"every": 0, "attack": "gap"},
    "events": [{"round": 4, "leave": [3]}],
}
VIEWS = ("outsider", "client", "pair", "before")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of each method, and its audit's files."""
    made = {}
    for method in ("continue", "exact"):
        out = tmp_path_factory.mktemp("leavers") / method
        with unrendered_figures():
            run(parse_config({**TABLE, "forgetting": {"method": method}}, "the test"), out)
            made[method] = out, audit_leaver(out, 3, references=8)
    return made


def test_a_model_that_trained_on_the_leaver_last_is_still_recognisable(runs):
    flat = runs["continue"][1].flat
    assert [flat[f"views.{view}.leaver.verdict"] for view in VIEWS[:2]] == ["recognisable"] * 2
    assert flat["client-membership.outsider.auc"] > 0.9
    assert flat["worst.exposure"] >= flat["worst.exposure.low"]
    assert flat["leaver.p"] == 1 / 9, "no federation without it is as confident on its records"


def test_after_exact_forgetting_only_who_kept_the_old_model_tells(runs):
    flat = runs["exact"][1].flat
    assert flat["views.before.leaver.verdict"] == "recognisable", "before it left"
    assert flat["leaver.retrained"] == "clusters"
    assert "recognisable" not in [flat[f"views.{view}.leaver.verdict"] for view in VIEWS[:2]]
    assert flat["views.pair.leaver.verdict"] == "recognisable"
    pair = {name: flat.get(f"attacks.{name}.leaver.auc", 0.0) for name in ("drop", "span-pair", "joint-pair")}
    assert all(value > 0.5 for value in pair.values()), pair
    assert flat["leaver.client_rounds"] == flat["leaver.full_client_rounds"] == 12


def test_the_files_say_what_the_answer_says(runs):
    out, audit = runs["continue"]
    folder = out / "left-3"
    assert json.loads((folder / "audit.json").read_text()) == audit.flat
    page = (folder / "audit.html").read_text()
    assert all(sentence.replace("'", "&#39;") in page for sentence in audit.answer)
    others, records = (pd.read_csv(folder / f"{name}.csv") for name in ("others", "records"))
    assert others.columns.tolist() == [*OTHER_COLUMNS]
    assert others["client"].tolist() == [0, 1, 2, 4]
    assert others["exposure_after"].mean() == pytest.approx(audit.flat["others.all.exposure.after"])
    assert others["accuracy_before"].mean() == pytest.approx(audit.flat["others.all.accuracy.before"])
    assert records.columns.tolist() == ["record", "exposure", "exposure_low", "outsider"]
    assert records["exposure"].max() >= audit.flat["worst.exposure"]
    keys = {
        "others.all.exposure.difference.high",
        "leaver.round",
        "leaver.method",
        "references",
        "others.all.accuracy.difference.low",
        "seconds.references",
    }
    assert keys <= audit.flat.keys()
    views = {key.split(".")[1] for key in audit.flat if key.startswith("views.")}
    assert views == {*VIEWS}
    assert all(f"{key}.low" in audit.flat for key in audit.flat if re.fullmatch(r"(attacks|views)\..*\.auc", key))


def test_a_broken_gate_ends_with_three_and_federations_are_trained_once(runs, monkeypatch, capsys):
    monkeypatch.setattr(LeaverRun, "train_reference", lambda *_, **__: pytest.fail("trained again"))
    asked = ["audit", str(runs["continue"][0]), "--left", "3", "--references", "8", "--quiet"]
    with unrendered_figures():
        assert main([*asked, "--gate", "views.outsider.leaver.auc <= 0.6"]) == 3
        assert main([*asked, "--gate", "views.outsider.leaver.auc < 1"]) in (0, 3)
    assert "still recognisable" in capsys.readouterr().out


def test_a_gate_is_broken_by_a_leaver_below_chance_not_by_the_sign_of_scores():
    key, view = "attacks.rmia.leaver.auc", "views.outsider.leaver.auc"
    flat = {key: 0.02, f"{key}.low": 0.0, f"{key}.high": 0.04, view: 0.98, f"{view}.low": 0.96, f"{view}.high": 1.0}
    (gate,) = parse_gates([f"{view} <= 0.6"])
    assert wrong_sign(flat) == {}
    assert gate.broken_by(flat) == {view: 1.0}


@pytest.mark.parametrize(
    ("client", "more", "sentence"),
    [
        ("1", {}, "name one of [3]"),
        ("nobody", {}, "client 'nobody' is not in the federation"),
        ("3", {"references": 9}, "even number of at least 8"),
        ("3", {"gates": ["auc >= 1"]}, "a gate has the form"),
    ],
)
def test_what_cannot_be_audited_is_refused(runs, client, more, sentence):
    with pytest.raises(InputError, match=re.escape(sentence)):
        audit_leaver(runs["continue"][0], client, **more)


def test_options_of_other_audits_are_refused(runs, capsys):
    folder = str(runs["continue"][0])
    for options in (["--site"], ["--queries", "2"], ["--leave-out-duplicates"], ["--scores", "x.csv"]):
        assert main(["audit", folder, "--left", "3", *options]) == 2
    assert main(["audit", "--left", "3", "--trace", folder]) == 2
    assert "no run" in capsys.readouterr().err


def test_a_run_that_nobody_left_and_models_of_ones_own_are_refused(tmp_path):
    nobody = {**TABLE, "events": [{"round": 2, "join": [1]}]}
    own = {**TABLE, "algorithm": {"name": "local", "rounds": 4}}
    for name, table, sentence in (("a", nobody, "client '3' did not leave"), ("b", own, "personal models")):
        with unrendered_figures():
            run(parse_config(table, "the test"), tmp_path / name)
        with pytest.raises(InputError, match=sentence):
            audit_leaver(tmp_path / name, 3)
