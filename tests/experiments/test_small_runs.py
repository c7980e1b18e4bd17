"""Each script once on toy data: it writes its files, and what these must say whatever the data are."""

import json
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tomli_w

import shoal
from experiment_scripts import EXPERIMENTS, experiment_script
from shoal.config.schema import parse_config, read_config
from shoal.sweeps import Workers, read_sweep, run_sweep

SMALL = [
    'data.source="digits"', "data.clients=6", "data.examples_per_client=10", "data.holdout_examples=6",
    "data.shadow_examples=60", "data.test_examples=60", "model.hidden=8", "algorithm.rounds=2", "red_team.every=1",
    'red_team.attack="loss-threshold"', "red_team.shadow_models=2", "local.batch_size=5", "local.epochs=1",
]  # fmt: skip
COORDINATED = [
    'data.source="digits"', "data.clients=10", "data.examples_per_client=6", "data.holdout_examples=4",
    "data.test_examples=20", "data.groups.minority.share=0.4", "data.groups.majority.share=0.6", "model.hidden=4",
    "local.epochs=1", "local.batch_size=6", "coordinator.augmentation.shift=1", "algorithm.rounds=2",
    "red_team.every=2",
]  # fmt: skip
RESPONSE = EXPERIMENTS / "control" / "response.toml"


def files(folder):
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def sweep(toy_sweep, tmp_path_factory):
    """Runs of two algorithms with two seeds, with their updates."""
    folder = tmp_path_factory.mktemp("audits")
    grid = (
        'base = "base.toml"\nseeds = [0, 1]\n[grid.algorithm]\n'
        '"IFCA" = { "algorithm.name" = "ifca" }\n"IFCA-MIR" = { "algorithm.name" = "ifca-mir" }\n'
    )
    path = toy_sweep(folder, grid, algorithm__rounds=2, red_team__attack="shadow", record={"updates": 1})
    run_sweep(read_sweep(path), folder / "out", workers=Workers(1))
    return folder / "out"


@pytest.fixture
def without_pages(monkeypatch):
    monkeypatch.setattr("shoal.reports.audit.audit_page.audit_page", lambda *_, **__: "")


@pytest.mark.usefixtures("without_pages")
def test_the_attacks_of_a_sweep_are_compared_by_number_of_references(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["attacks.py", str(sweep), str(tmp_path), "--references", "3"])
    experiment_script("audit/attacks").main()
    attacks, violations = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("attacks", "violations"))
    assert set(attacks["references"]) == {1, 3}
    assert "lira" not in set(attacks.loc[attacks["references"] == 1, "attack"])
    assert len(violations) == 4
    # On each model one of them decides.
    names = [name for name in violations if name not in {"algorithm", "seed", "strongest"}]
    assert (violations["strongest"] <= violations[names].sum(axis=1)).all()
    # Fewer references are the first of many.
    first = min(path for path in (sweep / "runs").iterdir() if path.is_dir())
    alone = shoal.audit_run(first, references=1, out=tmp_path / "one").flat["attacks.calibration.all.auc"]
    one = attacks[(attacks["references"] == 1) & (attacks["attack"] == "calibration") & (attacks["name"] == "all")]
    assert alone in set(one["auc"])


@pytest.mark.usefixtures("without_pages")
def test_every_attack_is_asked_about_a_sweep(sweep, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["every_attack.py", str(sweep), str(tmp_path), "--references", "1"])
    experiment_script("attacks/every_attack").main()
    found = pd.read_csv(tmp_path / "attacks.csv")
    assert found.groupby("setting")["seed"].nunique().to_dict() == {"IFCA": 2, "IFCA-MIR": 2}
    assert {"attacks.fedmia-ii.all.auc", "attacks.rmia-offline.all.auc", "source-inference.chance"} <= set(found["key"])


@pytest.mark.usefixtures("_rendered_figures")
def test_sybils_obtain_models_of_cfl(tmp_path, monkeypatch):
    script = experiment_script("attacks/model_acquisition")
    monkeypatch.setattr(script, "ATTACKED", (("adaptive", "none"), ("adaptive", "admission 0.3")))
    monkeypatch.setattr(script, "DEFENSES", {name: script.DEFENSES[name] for name in ("none", "admission 0.3")})
    monkeypatch.setattr(script, "SETTLE", 4)
    script.acquire(tmp_path / "out", [0], 2, [], "python script.py")
    shares, newcomers, membership = (
        pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("shares", "newcomers", "membership")
    )
    assert shares["share"].tolist() == [0.25, 0.5, 0.25, 0.25], "the second sybil is refused"
    assert (newcomers[["own", "other", "divided", "refused"]].sum(axis=1) == 1).all()
    assert newcomers["own"][0] == 1
    assert newcomers["refused"][3] > 0, "few examples make updates less similar"
    others = membership[~membership["obtained"]]
    assert (others["harvest"] == others["own_model"]).all(), "what was not obtained is attacked by the own model"


def test_null_runs_have_one_verdict_per_audit(tmp_path, monkeypatch):
    null = experiment_script("audit/null_runs")
    configuration = null.configuration

    def small(algorithm, seed):
        table = configuration(algorithm, seed)
        data = table["data"] | {"clients": 4, "shadow_examples": 50, "test_examples": 100}
        algorithm, local = table["algorithm"] | {"rounds": 1}, table["local"] | {"epochs": 1}
        return table | {"data": data, "algorithm": algorithm, "local": local}

    monkeypatch.setattr(null, "configuration", small)
    monkeypatch.setattr(null, "ALGORITHMS", ({"name": "ifca", "clusters": 2},))
    null.main([str(tmp_path), "--seeds", "0", "--references", "2", "--draws", "3"])
    audits = pd.read_csv(tmp_path / "runs" / "ifca-0-2-3.csv").groupby(["kind", "draw"])["said"]
    assert (audits.nunique() == 1).all(), "an audit has one verdict"
    assert set(pd.read_csv(tmp_path / "null.csv")["null"]) == {"swapped", "noise"}


def test_null_views_ask_of_pairs_that_nobody_trained_on(tmp_path, monkeypatch):
    null = experiment_script("audit/null_views")
    configuration, unseen, asked = null.configuration, null.unseen, []

    def small(seed, noise):
        table = configuration(seed, noise)
        data = {"source": "digits", "clients": 4, "shadow_examples": 50, "test_examples": 300}
        return table | {"data": table["data"] | data, "algorithm": table["algorithm"] | {"rounds": 1}}

    def observed(attacked, random):
        other = unseen(attacked, random)
        trained = attacked.records.federation.clients.indices
        asked.append(not np.isin(other.records.rows.numpy(), trained.numpy()).any())
        assert len(set(other.records.rows.tolist())) == 2 * len(other.records)
        return other

    monkeypatch.setattr(null, "configuration", small)
    monkeypatch.setattr(null, "unseen", observed)
    null.main([str(tmp_path), "--seeds", "1"])
    table = pd.read_csv(tmp_path / "null-views.csv").set_index(["kind", "view"])
    assert asked == [True]
    assert table.loc[("members", "server"), "mean auc"] > 0.9
    assert table.loc[("unseen", "server"), "mean auc"] < 0.7


def test_the_rule_of_preflight_is_judged_by_the_attack(tmp_path, monkeypatch):
    rule = experiment_script("audit/preflight_rule")
    # A sum of few clients, much noise, and a sum of many examples, without a statement.
    cells = [
        rule.Cell("digits", "mlp", 5, 2, hidden=32),
        rule.Cell("digits", "logistic", 100, 2, defense=rule.noisy(30.0)),
        rule.Cell("digits", "logistic", 200, 2),
    ]
    monkeypatch.setattr(rule, "CELLS", cells)
    monkeypatch.setattr(sys, "argv", ["preflight_rule.py", str(tmp_path), "--seeds", "0", "1"])
    rule.main()
    table = pd.read_csv(tmp_path / "preflight-rule.csv", keep_default_na=False)
    assert table["predicted"].tolist() == ["recognised", "hidden", "between"]
    assert table["right"].tolist() == ["yes", "yes", ""]
    assert [rule.judged("recognised", 0.9, 1.0), rule.judged("hidden", 0.4, 0.6)] == ["NO", "NO"]


def test_every_defence_of_the_views_is_a_configuration():
    views = experiment_script("audit/views")
    assert {parse_config(views.configuration(setting, 3), setting).seed for setting in views.SETTINGS} == {3}


@pytest.mark.usefixtures("_unrendered_figures")
def test_a_board_measures_a_defence_on_its_own_seeds_and_refuses_changed_federations(toy_config, tmp_path, capsys):
    script = experiment_script("board/board")
    (tmp_path / "small.toml").write_text(
        toy_config(algorithm__name="ifca", red_team={"every": 0, "attack": "gap"}).toml()
    )
    (tmp_path / "mine.toml").write_text(tomli_w.dumps({"name": "mine", "about": "x", "changes": {"local.epochs": 1}}))
    asked = {"file": "small.toml", "configuration": "?", "examples": "?"}
    for _ in range(2):
        board = {"development_seeds": [100], "judging_seeds": 2, "references": 1, "federations": {"small": asked}}
        (tmp_path / "board.toml").write_text(tomli_w.dumps(board))
        asked["configuration"], asked["examples"] = script.read_board(tmp_path).hashes("small")
    command = [str(tmp_path / "mine.toml"), "--board", str(tmp_path), "--out", str(tmp_path / "out")]
    assert script.main([*command, "--judge", "--quiet"]) == 0
    rows = pd.read_csv(tmp_path / "out" / "mine.csv")
    assert set(rows["seed"]) == set(script.Defence("any", "x", {"local.epochs": 1}).seeds(2))
    assert (rows["outsider"] <= rows["client"]).all()
    assert (rows["client"] <= rows["server"]).all()
    (tmp_path / "small.toml").write_text((tmp_path / "small.toml").read_text() + "\n[canaries]\nper_client = 1\n")
    assert script.main(command) == 2
    assert "computes something else than the board's federation 'small'" in capsys.readouterr().err


def test_the_page_of_the_board_shows_the_shipped_rows_and_every_defence_can_be_read(capsys):
    script = experiment_script("board/board")
    assert script.main([]) == 0
    page = (EXPERIMENTS.parent / "docs" / "results" / "board" / "board.md").read_text(encoding="utf-8")
    assert all(table in page for table in capsys.readouterr().out.strip().split("\n\n"))
    board = script.read_board(EXPERIMENTS / "board")
    defences = sorted((EXPERIMENTS / "board" / "defences").glob("*.toml"))
    assert len({script.read_defence(path, board).name for path in defences}) == len(defences) >= 10


def test_choices_have_their_figures_and_one_model_has_none(toy_config):
    choices = experiment_script("audit/choices")
    found = choices.measured(toy_config(algorithm={"name": "ifca", "rounds": 3, "clusters": 2}))
    assert found["strictness.low"] <= found["strictness"] <= found["strictness.high"]
    assert choices.measured(toy_config(algorithm={"name": "fedavg", "rounds": 3})) == {}


@pytest.mark.usefixtures("_rendered_figures")
def test_a_third_of_a_cluster_leaves_and_the_loop_responds(tmp_path, monkeypatch):
    steps = experiment_script("control/step_response")
    monkeypatch.setattr(steps, "AFTERWARDS", 8)
    monkeypatch.setattr(steps, "EVENTS", (replace(steps.EVENTS[1], round=4),))
    steps.respond(tmp_path, [0], COORDINATED, "the command")
    assert files(tmp_path) == {"disturbance.csv", "disturbance.svg", "step.md"}
    rows = pd.read_csv(tmp_path / "disturbance.csv")
    assert rows["round"].unique().tolist() == [2, 4, 6, 8, 10, 12]
    total, at_event = rows.groupby("round")["clients"].sum(), rows[rows["round"] == 4]
    assert total[4] == 10
    assert total[6] == 10 - round(at_event.loc[at_event["cluster"] == "larger", "clients"].sum() / 3)


def test_the_parts_of_a_cost_are_within_the_whole():
    costs = experiment_script("control/cost")
    config = read_config(RESPONSE, [*COORDINATED, "privacy.thresholds=[0.5,0.5]"])
    found = costs.measured(config, costs.load_data(config.data))
    assert 0 < found["coordinator"] < found["processor"]
    assert found["share"] == pytest.approx((found["sensor"] + found["coordinator"]) / found["processor"])
    compared = list(costs.settings_of(read_config(RESPONSE, COORDINATED)).values())
    assert [each.red_team.every for each in compared] == [0, 2, 2, 0, 2]
    assert [each.coordinator is not None for each in compared] == [False, False, True, False, True]


def test_the_demonstration_ends_with_eight_lines_that_are_of_its_files(tmp_path, capsys):
    demo, out = experiment_script("demo/demo"), tmp_path / "demo"
    changes = ("algorithm.rounds=2", "data.test_examples=120", "evaluation.every=9")
    assert demo.demonstrate(out, 1, references=1, changes=changes) == 0
    ended = capsys.readouterr().out.strip().splitlines()[-8:]
    assert max(map(len, ended)) <= 80 or len(str(out)) > 60
    audit = pd.read_csv(out / "ifca" / "audit.csv")
    minority = audit[(audit["name"] == "minority") & ~audit["attack"].str.endswith("others")]
    assert ended[3].split()[3] == f"{100 * minority['accuracy'].max():.0f}"
    summary = json.loads((out / "protected" / "summary.json").read_text())
    assert ended[5].split()[-2] == f"{100 * summary['bound.client.accuracy']:.0f}"
    assert demo.demonstrate(out, 1, references=1, changes=changes) == 2


def test_the_audit_of_dp_sgd_catches_the_fraud_alone_and_is_taken_up_where_it_stopped(tmp_path, monkeypatch):
    script, ran = experiment_script("audit/dp"), []
    audited = script.audited
    monkeypatch.setattr(script, "audited", lambda case, config: (ran.append(case), audited(case, config))[1])
    cases = [script.Case(mechanism, "full", 1, 0) for mechanism in (script.HONEST, script.BROKEN)]
    # 10 rounds, as the epsilons are for.
    changes = [
        'data.source="digits"', "data.examples_per_client=24", "data.test_examples=20", "canaries.per_client=12",
        "data.clients=10", "algorithm.rounds=10",
    ]  # fmt: skip
    script.audit(tmp_path, cases[:1], changes)
    rows = script.audit(tmp_path, cases, changes).set_index("mechanism")
    assert ran == cases
    assert rows["epsilon"].tolist() == pytest.approx([1, 1], rel=0.01)
    assert rows.loc[script.HONEST, ["server.low", "outsider.low"]].max() < 1
    assert rows.loc[script.BROKEN, "server.low"] > 1
    assert (rows[["server.low", "outsider.low"]].max(axis=1) <= rows["largest"]).all()


def test_own_risks_have_the_estimates_of_clients_server_and_audit():
    rows = experiment_script("federation/own_risks").compared(
        EXPERIMENTS / "demo" / "digits.toml", [one for one in SMALL[1:] if "hidden" not in one]
    )
    assert rows["clients"].sum() == 6
    used = rows[rows["clients"] > 0]
    assert used[["own, mean", "server", "audit"]].apply(lambda column: column.between(0, 1)).all(axis=None)


def test_a_mixture_of_one_is_its_component_whose_accuracy_is_the_run_s(toy_config, tmp_path):
    mixture = experiment_script("algorithms/mixture")
    two, one = (toy_config(algorithm={"name": "fedem", "rounds": 2, "clusters": m}) for m in (2, 1))
    component, mixed = mixture.accuracies(two)
    run = shoal.load(shoal.run(two, tmp_path / "run"))
    assert component == pytest.approx(run.summary.overall["accuracy.overall"]) != mixed
    alone, same = mixture.accuracies(one)
    assert alone == same


def test_a_comparison_of_sensors_is_taken_up_where_it_stopped(tmp_path, monkeypatch):
    script, ran = experiment_script("sensors/compare"), []
    run = script.run
    monkeypatch.setattr(script, "run", lambda config: (ran.append(config.seed), run(config))[1])
    script.compare(tmp_path, [0], SMALL)
    lines = script.compare(tmp_path, [0, 1], SMALL)
    rows = pd.read_csv(tmp_path / "estimates.csv")
    assert (rows.groupby(["seed", "round", "cluster"])["sensor"].nunique() == 11).all(), "every sensor judges every one"
    assert rows["risk"].between(0, 1).all()
    assert (lines.loc[(lines["truth"] == "audit") & (lines["sensor"] == "audit"), "error"] == 0).all()
    # With another setting beside them, no run is taken for another.
    script.compare(tmp_path, [0], [*SMALL, "local.learning_rate=0.05"])
    assert ran == [0, 1, 0]
    assert files(tmp_path) == {"runs", "estimates.csv", "sensors.csv", "sensors.md"}
