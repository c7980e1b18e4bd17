"""``shoal preflight``: what it prints, its gates, and its exit codes."""

import json

import pytest

from shoal.cli.app import main


@pytest.fixture
def config(toy_config, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(toy_config(data__clients=6, algorithm__rounds=2).toml())
    return str(path)


def test_it_says_in_sentences_who_sees_what_and_writes_nothing(config, tmp_path, capsys):
    assert main(["preflight", config]) == 0
    printed = capsys.readouterr()
    for title in ("The server, from each client's updates", "Another client", "An outsider", "What this assumes"):
        assert title in printed.out
    assert printed.err == ""
    assert [path.name for path in tmp_path.iterdir()] == ["small.toml"]


def test_on_a_terminal_verdicts_are_coloured(config, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["preflight", config, "--set", "model.name=mlp", "--set", "model.hidden=64"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b[1;31m" in printed
    assert max(len(line) for line in printed.splitlines() if "\x1b" not in line) <= 60


def test_json_has_what_gates_limit(config, capsys):
    changes = ["--set", "model.name=mlp", "--set", "model.hidden=64"]
    assert main(["preflight", config, *changes, "--json", "--gate", "views.server.minority.auc <= 0.6"]) == 3
    printed = capsys.readouterr()
    flat = json.loads(printed.out)
    assert flat["views.server.minority.verdict"] == "recognised"
    assert (flat["views.server.minority.auc.low"], flat["views.server.minority.auc.high"]) == (0.9, 1.0)
    assert printed.err.startswith("Gate views.server.minority.auc <= 0.6: broken by views.server.minority.auc")


def test_of_a_sweep_the_base_is_asked_for(tmp_path, capsys):
    path = tmp_path / "many.toml"
    path.write_text('base = "one.toml"\nseeds = [0, 1]\n')
    assert main(["preflight", str(path)]) == 2
    assert "'one.toml', or run it with 'shoal sweep'" in capsys.readouterr().err


def test_a_gate_that_holds(config, capsys):
    private = ["--set", "defenses.dp_sgd.noise_multiplier=1000.0", "--set", "model.name=logistic"]
    assert main(["preflight", config, *private, "--gate", "auc <= 0.6"]) == 0
    printed = capsys.readouterr().out
    assert "What DP-SGD guarantees" in printed
    assert "Gate auc <= 0.6: holds" in printed
    assert main(["preflight", config, "--set", "model.name=logistic", "--gate", "auc <= 0.6"]) == 3
    assert (
        "Gate auc <= 0.6: broken by views.server.minority.auc, whose upper end is 1.000, and 5 more figures"
        in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "algorithm.round=3"], "unknown key 'algorithm.round'; did you mean 'rounds'?"),
        (["--gate", "auc = 0.6"], "a gate has the form 'METRIC <= NUMBER'"),
        (["--gate", "tpr_at_fpr_0.01 <= 0.1"], "'tpr_at_fpr_0.01' was not measured"),
        (["--set", "data.examples_per_client=100000"], "digits"),
    ],
)
def test_wrong_input_is_one_sentence(config, capsys, more, said):
    assert main(["preflight", config, *more]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert said in error
    assert error.startswith("shoal: ")
