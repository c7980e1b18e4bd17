"""The files of docs/adding.md: one's own algorithm, attack, defence, data source, network, all outside the package."""

import ast
import importlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch

import shoal
from full_simulation import simulate_with
from shoal.attacks import ReferenceAttack, UpdateAttack
from shoal.audit import Measurement
from shoal.cli.app import main
from shoal.config.build import build
from shoal.config.schema import RecordSection, parse_config, read_config
from shoal.engine import ClusterRound, LocalDefense, LocalSGD, ScalableDefense
from shoal.runs.audits.audit_members import audit_trace
from shoal.runs.result import report_of
from shoal.runs.run import run
from shoal.testing import check_algorithm, check_attack, check_defense

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = DOCS / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))


@pytest.fixture
def examples(monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_each_is_one_file_of_at_most_60_lines_that_the_page_links(path):
    assert len(path.read_text().splitlines()) <= 60
    assert f"examples/{path.name}" in (DOCS / "adding.md").read_text()
    imported = [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    own = {path.stem for path in FILES}
    assert not own & set(imported), "an example must stand alone"


def test_all_of_them_run_from_a_configuration(examples, tmp_path):
    config = read_config(EXAMPLES / "own.toml")
    out = run(config, tmp_path / "run")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["algorithm"] == "sticky_ifca:StickyIFCA"
    # A quarter of the images would be right by guessing.
    assert summary["accuracy.overall"] > 0.5
    written = read_config(out / "config.toml", allow_code=True)
    assert written.algorithm.value == config.algorithm.value
    assert written.coordinator == config.coordinator
    assert list(config.coordinator.coordinator().knobs) == ["rate"]
    assert "clusters.0.directive.rate" in summary
    clients = pd.read_csv(out / "clients.csv")
    assert summary["worst_client"] == clients["accuracy"].min()
    assert summary["clusters.0.worst_client"] == clients.loc[clients["cluster"] == 0, "accuracy"].min()
    page = report_of(out, allow_code=True).read_text()
    assert ">Coordinator</h2>" in page
    assert "accuracy of the worst client" in page.lower()
    assert written.evaluation == config.evaluation


FEDERATION = """
import torch, shoal
def load(path, task):
    images = torch.rand(6, 20, 1, 6, 6, generator=shoal.Stream(0).generator())
    clients = [(each, (each.mean((1, 2, 3)) > 0.5).long()) for each in images]
    test = shoal.Examples(*clients[0], groups=["north", "south"] * 10)
    return shoal.Federation.from_tensors(clients, test=test, shadow=test, groups=["north", "south"] * 3)
"""
ONE_SET = {"clients": 5, "examples_per_client": 20, "test_examples": 50, "shadow_examples": 20}


@pytest.mark.parametrize(
    ("source", "keys", "groups"),
    [
        ("wine:load", ONE_SET, ["all"]),
        ("wine:by_strength", {"client": "cellar", "label": "target", "shadow_fraction": 0.1}, ["all"]),
        ("made:load", {}, ["north", "south"]),
    ],
)
def test_a_source_returns_arrays_a_table_or_a_federation(examples, monkeypatch, tmp_path, source, keys, groups):
    (tmp_path / "made.py").write_text(FEDERATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    table = {"data": {"source": source, **keys}, "model": {"name": "mlp", "hidden": 8}}
    table |= {"algorithm": {"name": "fedavg", "rounds": 8}, "local": {"batch_size": 10, "learning_rate": 0.3}}
    out = run(parse_config(table, "a test"), tmp_path / "run")
    summary = json.loads((out / "summary.json").read_text())
    assert summary["accuracy.overall"] > (0.85 if source.startswith("wine") else 0.4)
    assert {f"accuracy.{group}" for group in groups} - {"accuracy.all"} <= summary.keys()
    written = read_config(out / "config.toml", allow_code=True)
    assert list(written.data.groups) == groups
    assert run(written, out, resume=True) == out


@pytest.mark.parametrize(
    ("source", "keys", "sentence"),
    [
        ("wine:load", {}, "'data.clients', 'data.examples_per_client' and 'data.test_examples'"),
        ("wine:load", {"client": "a", "label": "b"}, "'wine:load' did not return a table"),
        ("wine:by_strength", ONE_SET, "'wine:by_strength' returned"),
        ("made:load", ONE_SET, "'data.clients' and other numbers of examples"),
        ("made:load", {"test_fraction": 0.5}, "'data.test_fraction' and other fractions"),
    ],
)
def test_keys_that_do_not_fit_a_source_are_one_sentence(examples, monkeypatch, tmp_path, source, keys, sentence):
    (tmp_path / "made.py").write_text(FEDERATION)
    monkeypatch.syspath_prepend(str(tmp_path))
    table = {"data": {"source": source, **keys}, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg", "rounds": 1}}
    with pytest.raises(shoal.InputError, match=re.escape(sentence)):
        run(parse_config(table, "a test"), tmp_path / "run")


def test_own_attacks_enter_the_audit_of_a_run(examples, tmp_path, capsys):
    """Those of the configuration, and one more that the command names; from Python the same."""
    config = read_config(EXAMPLES / "own.toml", ["algorithm.rounds=2", "evaluation.attacks=['step_attack:StepAttack']"])
    out = run(replace(config, record=RecordSection(updates=1)), tmp_path / "run")
    assert main(["audit", str(out), "--references", "2", "--attack", "rank_attack:RankAttack", "--allow-code"]) == 0
    found = json.loads((out / "audit.json").read_text())
    assert {"attacks.rank.all.auc", "attacks.step.all.auc", "attacks.step-others.all.auc"} <= set(found)
    page = (out / "audit.html").read_text()
    assert "rank among reference models" in page.lower()
    assert "Nearest step" in page
    rows = pd.read_csv(out / "audit.csv").drop_duplicates("attack").set_index("attack")["view"]
    assert rows[["rank", "step"]].tolist() == ["outsider", "server"]
    audit_trace(
        out, out=tmp_path / "trace", attacks=[importlib.import_module("step_attack").StepAttack()], allow_code=True
    )
    assert json.loads((tmp_path / "trace/audit.json").read_text())["attacks.step.all.auc"] > 0.5
    capsys.readouterr()


def test_own_attacks_and_metrics_from_a_script(examples, build, mlp):
    from rank_attack import RankAttack  # noqa: PLC0415
    from step_attack import StepAttack  # noqa: PLC0415
    from worst_client import worst_client  # noqa: PLC0415

    assert isinstance(RankAttack(), ReferenceAttack)
    assert isinstance(StepAttack(), UpdateAttack)
    assert isinstance(worst_client, Measurement)
    asked = {"metrics": [worst_client], "attacks": [RankAttack()], "reference_federations": 2}
    result = simulate_with(build(), mlp, shoal.FedAvg(), LocalSGD(), rounds=2, **asked)
    assert result.summary.overall["worst_client"] == result.clients["accuracy"].min()
    assert "mia_by_rank" in result.summary.by_group[next(iter(result.summary.by_group))]
    assert "rank" in set(result.audit(references=2).attacks["attack"])
    again = simulate_with(build(), mlp, shoal.FedAvg(), LocalSGD(), rounds=2)
    assert "rank" in set(again.audit(references=2, attacks=[RankAttack()]).attacks["attack"])
    assert torch.equal(again.state.models, result.state.models), "what is measured changes nothing"


def test_a_metric_that_cannot_be_made_is_one_sentence(examples):
    for name, sentence in (
        ("worst_client", "must be 'module:Name'"),
        ("bars:load", "with 'name', 'title' and 'measure'"),
        ("torch:Size", "with 'name'"),
    ):
        with pytest.raises(shoal.InputError, match=sentence):
            build(read_config(EXAMPLES / "own.toml", [f"evaluation.metrics=['{name}']"]))


def test_one_s_own_defence_is_steered(examples, build, mlp):
    from lower_rate import LowerRate  # noqa: PLC0415

    half, local = LowerRate(0.5), LocalSGD(learning_rate=0.2)
    at = ClusterRound(round=1, cluster=0)
    assert [half.with_strength(u).local(local, at).learning_rate for u in (0.0, 0.5, 1.0)] == pytest.approx(
        [0.2, 0.15, 0.1]
    )
    knobs = {"rate": shoal.Knob(half, risk_reduction=0.02, accuracy_cost=0.01)}
    asked = shoal.LimitController(knobs, gain=1.0, release=0.0, prediction=shoal.RiskPrediction())
    team = shoal.RedTeam(every=2, estimator="audit", attack=shoal.LossThreshold())
    result = simulate_with(build(), mlp, shoal.IFCA(2), local, rounds=2, red_team=team, coordinator=asked)
    alone = shoal.simulate(build(), mlp, shoal.IFCA(2), local, rounds=2, red_team=team)
    assert (result.rounds.loc[result.rounds["round"] == 1, "directive.rate"] == 1.0).all()
    slow = shoal.simulate(build(), mlp, shoal.IFCA(2), half.local(local, at), rounds=2, red_team=team)
    assert not torch.equal(result.state.models, alone.state.models)
    assert torch.equal(result.state.models, slow.state.models), "at full strength it is the fixed defence"


def test_one_s_own_loss_is_minimised_and_at_strength_0_is_the_plain_one(examples, build, mlp):
    from label_smoothing import LabelSmoothing  # noqa: PLC0415

    local = LocalSGD(epochs=5)
    plain, off, smoothed = (
        shoal.simulate(build(), mlp, shoal.FedAvg(), local, rounds=2, defenses=defenses)
        for defenses in ([], [LabelSmoothing(0.0)], [LabelSmoothing(0.5)])
    )
    assert torch.equal(off.state.models, plain.state.models)
    assert smoothed.clients["loss"].mean() > plain.clients["loss"].mean()
    assert isinstance(LabelSmoothing(), ScalableDefense)


def test_the_examples_are_what_the_protocols_ask_for(examples):
    from entropy_attack import EntropyAttack  # noqa: PLC0415
    from half_steps import test_half_steps_keep_the_laws  # noqa: PLC0415
    from label_smoothing import LabelSmoothing  # noqa: PLC0415
    from lower_rate import LowerRate  # noqa: PLC0415
    from risk_decay import RiskDecay  # noqa: PLC0415
    from sticky_ifca import StickyIFCA  # noqa: PLC0415

    assert isinstance(RiskDecay(), LocalDefense)
    assert isinstance(LowerRate(), ScalableDefense)
    test_half_steps_keep_the_laws()
    check_algorithm(StickyIFCA())
    check_attack(EntropyAttack())
    for defense in (RiskDecay(), LowerRate(), LabelSmoothing()):
        check_defense(defense)


@pytest.mark.processes
def test_the_command_line_finds_them_in_the_current_folder(tmp_path):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "shoal",
            "run",
            "own.toml",
            "--out",
            str(tmp_path / "run"),
            "--set",
            "algorithm.rounds=2",
        ],
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Test accuracy: 1.000" in done.stdout
