"""``--json``: every command has it, and prints one document with the figures of its files and tables."""

import csv
import json

import pytest
import tomli_w
import typer

from shoal.cli.answers import CommandResult, command
from shoal.cli.app import app, main
from shoal.protection.ladder import Ladder, Rung
from shoal.runs.audits.gate import parse_gates

NAMES = [entry.name or entry.callback.__name__ for entry in app.registered_commands]
"""Of all commands."""


@pytest.fixture(scope="module")
def folder(toy_config, tmp_path_factory):
    """Two finished runs, their configuration, and a sweep of one run."""
    folder = tmp_path_factory.mktemp("answers")
    small = toy_config(data__clients=6, algorithm__rounds=2, red_team__every=1)
    (folder / "small.toml").write_text(small.toml())
    plain = toy_config(data__clients=4, algorithm={"name": "ifca", "rounds": 1}, red_team={"every": 0, "attack": "gap"})
    (folder / "plain.toml").write_text(plain.toml())
    sweep = {"base": "plain.toml", "seeds": [0], "grid": {"local.learning_rate": [0.1]}}
    (folder / "sweep.toml").write_text(tomli_w.dumps(sweep))
    for name in ("ifca", "ifca-mir"):
        run = ["run", str(folder / "small.toml"), "--out", str(folder / name), "--set", f"algorithm.name={name}"]
        assert main([*run, "--quiet"]) == 0
    return folder


def asked(name, folder, tmp_path):
    """The arguments of a cheap call of a command."""
    gate, quiet = ["--gate", "empirical_epsilon <= 50"], "--quiet"
    runs = [str(folder / run) for run in ("ifca", "ifca-mir")]
    out = ["--out", str(tmp_path / "out")]
    private = ["--set", "defenses.dp_sgd.noise_multiplier=1000.0", "--set", "model.name=logistic"]
    seeds = ["--choosing", "1", "--judging", "2", "--references", "1", "--limit", "1.0", "--max-cost", "1.0"]
    return {
        "init": [str(tmp_path / "new.toml")],
        "data": [],
        "run": [runs[0].replace("ifca", "small.toml"), *out],
        "report": [runs[0]],
        "card": [runs[0], *out],
        "compare": runs,
        "audit": [runs[0], "--references", "1", *gate, *out],
        "preflight": [str(folder / "plain.toml"), *private, "--gate", "auc <= 0.6"],
        "sweep": [str(folder / "sweep.toml"), *out],
        "protect": [str(folder / "plain.toml"), *seeds, *out, quiet],
    }[name]


@pytest.mark.parametrize("name", NAMES)
def test_every_command_prints_one_document(name, folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Ladder, "rungs", (Rung("one epoch", "one epoch", {"local.epochs": 1}),))
    assert main([name, *asked(name, folder, tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    said = {
        "run": "round 2 of 2",
        "sweep": "run 1 of 1",
        "audit": "Gate empirical_epsilon <= 50: holds",
        "preflight": "Gate",
    }
    assert said.get(name, "") in printed.err
    out, run = tmp_path / "out", folder / "ifca"
    match name:
        case "run":
            figures = json.loads((out / "summary.json").read_text())
            assert document == {**figures, "directory": str(out), "report": str(out / "report.html")}
        case "card":
            card = json.loads((out / "card.json").read_text())
            assert document == {**card, "file": str(out / "card.json"), "page": str(out / "card.html")}
        case "audit":
            figures = json.loads((out / "audit.json").read_text())
            gates = {"empirical_epsilon <= 50": True}
            assert document == {**figures, "report": str(out / "audit.html"), "gates": gates}
        case "protect":
            figures = json.loads((out / "protection.json").read_text())
            more = {"configuration": str(out / "protected.toml"), "report": str(out / "protection.html")}
            assert document == figures | more
        case "sweep":
            [row], [text] = document["results"], csv.DictReader((out / "results.csv").read_text().splitlines())
            assert {key: str(row[key]) for key in ("run", "accuracy.overall")}.items() <= text.items()
            assert (document["finished"], document["failed"]) == (1, {})
        case "compare":
            assert document["runs"]["IFCA"] == json.loads((run / "summary.json").read_text())
            assert document["settings"]["algorithm.name"] == {"IFCA": "ifca", "IFCA-MIR": "ifca-mir"}
            assert "Against IFCA, IFCA-MIR" in document["sentences"][0]
        case "report":
            assert document == {"report": str(run / "report.html")}
        case "init":
            assert document == {"configuration": str(tmp_path / "new.toml")}
        case "data":
            assert {"name", "path", "size", "instructions"} == {*document["data_sets"][0]}
        case "preflight":
            assert document["gates"] == {"auc <= 0.6": True}


def test_bad_input_prints_no_document(capsys):
    assert main(["run", "absent.toml", "--json"]) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)


def test_a_command_is_made_by_what_adds_the_option(capsys):
    """So that a new one cannot forget it."""
    mine = typer.Typer()
    gates = parse_gates(["auc <= 0.6"])

    @command(mine, "mine")
    def shown() -> CommandResult:
        return CommandResult({"auc": float("nan"), "a.auc.high": 0.7, "rows": [(1, float("inf"))]}, "a table", gates)

    assert all(hasattr(entry.callback, "__wrapped__") for entry in app.registered_commands)
    assert mine(["--json"], standalone_mode=False) == 3
    document = {"auc": None, "a.auc.high": 0.7, "rows": [[1, None]], "gates": {"auc <= 0.6": False}}
    assert json.loads(capsys.readouterr().out) == document
