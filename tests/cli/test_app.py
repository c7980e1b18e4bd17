"""The command line as its users meet it: what it prints, and its exit codes."""

import contextlib
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked_calls import PROCESS, called
from run_files import content
from shoal.__main__ import script
from shoal.cli.app import main
from shoal.data import load_dataset
from shoal.runs import run_training


@pytest.fixture
def config(toy_config, tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(toy_config(data__clients=6, algorithm__rounds=2, red_team__every=1).toml())
    return path


def test_run_compare_report(config, tmp_path, capsys):
    for name in ("ifca", "ifca-mir"):
        assert main(["run", str(config), "--out", str(tmp_path / name), "--set", f"algorithm.name={name}"]) == 0
        printed = capsys.readouterr()
        assert "Test accuracy: 0." in printed.out
        assert "report.html" in printed.out
        assert [line.split(";")[0] for line in printed.err.splitlines()] == ["round 1 of 2", "round 2 of 2"]
    assert main(["compare", str(tmp_path / "ifca"), str(tmp_path / "ifca-mir")]) == 0
    printed = capsys.readouterr().out
    for words in (
        "MIA accuracy, minority",
        "accuracy, majority",
        "limits exceeded",
        "migrated",
        "Against IFCA, IFCA-MIR",
    ):
        assert words in printed
    again = ["report", str(tmp_path / "ifca")], ["run", str(config), "--out", str(tmp_path / "ifca-mir"), "--resume"]
    for name, command in zip(("ifca", "ifca-mir"), again, strict=True):
        path = tmp_path / name / "report.html"
        page = path.read_bytes()
        path.unlink()
        assert main(command) == 0
        assert path.read_bytes() == page


def test_quiet_shows_no_progress_and_a_resume_of_nothing_says_so(config, tmp_path, capsys, caplog, monkeypatch):
    monkeypatch.setattr("shoal.runs.result.report_of", lambda out, **_: out / "report.html")
    command = ["run", str(config), "--resume", "--out"]
    nothing = "nothing to resume; the run starts from the beginning"
    assert main([*command, str(tmp_path / "a"), "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert f"{tmp_path / 'a'}: {nothing}" in caplog.messages, "a warning, which remains"
    assert main([*command, str(tmp_path / "[b]")]) == 0
    assert len(capsys.readouterr().err.splitlines()) == 2
    assert f"{tmp_path / '[b]'}: {nothing}" in caplog.messages
    caplog.clear()
    assert main([*command, str(tmp_path / "a")]) == 0
    assert (capsys.readouterr().err, caplog.messages) == ("", []), "there was something to resume"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "out/rounds.csv"), "failed: out/rounds.csv: No space left on device"),
        (IsADirectoryError(21, "Is a directory", "[x]/run.log"), "failed: [x]/run.log: Is a directory"),
        (OSError("nobody knows"), "failed: nobody knows"),
    ],
)
def test_an_error_of_the_operating_system_names_the_file(config, capsys, monkeypatch, error, said):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("shoal.runs.run.run", fail)
    assert main(["run", str(config)]) == 1
    assert capsys.readouterr().err == f"shoal: {said}\n"


@pytest.mark.parametrize(("command", "extra"), [("sweep", "shoal[ray]"), ("data", "shoal[hub]")])
def test_the_help_names_extras_in_brackets(command, extra, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "--help"]) == 0
    assert extra in capsys.readouterr().out


def test_data_counts_what_is_there(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for split, count in (("train", 7), ("t10k", 3)):
        header = struct.pack(">4I", 0x803, count, 5, 4)
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(header + bytes(count * 20))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 0x801, count) + bytes(count))
    assert main(["data", "--data-dir", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert next(line for line in printed.splitlines() if line.startswith("mnist")).split()[1:4] == ["10", "of", "5x4"]
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"nonsense")
    assert main(["data", "--data-dir", str(tmp_path)]) == 0
    assert "damaged" in capsys.readouterr().out


def test_the_default_directory_is_named_after_the_file(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("shoal.runs.result.report_of", lambda out, **_: out / "report.html")
    assert main(["run", str(config)]) == 0
    assert json.loads((tmp_path / "runs/small/summary.json").read_text())["algorithm"] == "ifca-mir"
    assert main(["run", str(config)]) == 2


def test_data_says_what_is_here_and_how_to_get_the_rest(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["data"]) == 0
    printed = capsys.readouterr().out
    sources = ("digits", "fashion-mnist", "emnist-byclass", "cifar10", "lfw")
    for words in (*sources, "1,797", "missing", "shoal[hub]", "shoal[images]"):
        assert words in " ".join(printed.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "absent.toml"], ["absent.toml", "cannot be read"]),
        (["run", "{config}", "--set", "algorithm.cluster=3"], ["algorithm.cluster", "did you mean 'clusters'"]),
        (["run", "{config}", "--set", "privacy.beta=-1"], ["privacy.beta", "at least 0", "-1"]),
        (["run", "{config}", "--set", "data.source=cifar10"], ["cifar10", "--data-dir"]),
        (["run", "{config}", "--set", "nonsense"], ["KEY=VALUE", "nonsense"]),
        (["run", "{config}", "--set", "engine.device=cuda"], ["device 'cuda' cannot be used"]),
        (["run", "{config}", "--out", "/dev/null/x"], ["/dev/null/x", "cannot be written"]),
        (["run", "{config}", "--out", "x" * 300], ["x" * 300, "the file name is too long"]),
        (["run"], ["config"]),
        (["run", "{config}", "--oot", "x"], ["--oot"]),
        (["walk"], ["walk"]),
        (["compare", "{config}"], ["at least two runs"]),
        (["compare", "nowhere", "nowhere"], ["nowhere", "not a finished run"]),
        (["report", "nowhere"], ["nowhere", "not a finished run"]),
        (["data", "--fetch", "mnsit"], ["mnsit"]),
        (["data", "--data-dir", "nowhere"], ["--data-dir", "'nowhere'"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_one_sentence_and_code_2(arguments, words, config, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_DATA", str(tmp_path / "no data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no cache"))
    if "engine.device=cuda" in arguments:
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    before = sorted(tmp_path.rglob("*"))
    assert main([argument.format(config=config) for argument in arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("shoal: ")
    assert len(printed.err.splitlines()) == 1
    for word in words:
        # The name of a missing argument is in small letters or capitals, by the version of typer.
        assert word.lower() in printed.err.lower()
    assert sorted(tmp_path.rglob("*")) == before, "something was written"


def test_data_says_how_many_examples_have_the_property(config, capsys):
    assert main(["data", str(config)]) == 0
    assert capsys.readouterr().out == "1,797 images in 10 classes\n"
    has_property = load_dataset("digits", task="class/thick").has_property
    count = int(has_property.sum())
    assert 0 < count < 600
    assert main(["data", str(config), "--set", "data.task=class/thick"]) == 0
    said = f"{count} of them ({100 * count / 1797:.1f} %) have the property 'thick'"
    assert capsys.readouterr().out.splitlines() == ["1,797 images in 10 classes", said]


INTERRUPTED = "shoal: interrupted; rerun the command with --resume"


@pytest.mark.processes
def test_interrupted_is_130_and_can_be_resumed(config, tmp_path, monkeypatch):
    out = tmp_path / "out"
    arguments = ["run", str(config), "--out", str(out), "--set", "algorithm.rounds=4000"]
    monkeypatch.setattr(sys, "argv", ["shoal", *arguments])
    call = called(script, tmp_path / "log")
    call.wait_until(lambda: list((out / "checkpoint").glob("round-*")))
    assert call.end(signal.SIGINT) == 130
    assert call.printed.splitlines()[-1] == INTERRUPTED
    assert list((out / "checkpoint").glob("round-*"))


@pytest.mark.processes
def test_interrupted_in_a_fit_that_cannot_be_it_ends_all_the_same(config, tmp_path, monkeypatch):
    """As those of some libraries, which nothing interrupts."""
    out = tmp_path / "out"
    arguments = ["run", str(config), "--quiet", "--out", str(out), "--set", "red_team.attack=gap"]

    def fit(*_):
        sys.stdout.write("fitting\n")
        while True:
            with contextlib.suppress(KeyboardInterrupt):
                time.sleep(60)

    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", ["shoal", *arguments])
        patched.setattr(run_training, "measure_final", fit)
        call = called(script, tmp_path / "log")
        call.wait_until(lambda: call.printed)
        assert (call.end(signal.SIGINT), call.printed) == (130, f"fitting\n{INTERRUPTED}\n")
    assert main([*arguments, "--resume"]) == 0
    assert (out / "summary.json").exists()


@pytest.mark.processes
@pytest.mark.parametrize("name", ["models.safetensors", "summary.json"])
def test_interrupted_while_it_writes_it_leaves_no_part_of_a_file(name, config, tmp_path, monkeypatch):
    out, whole, replace = tmp_path / "out", tmp_path / "whole", Path.replace
    arguments = ["run", str(config), "--quiet", "--out"]

    def pause(path, target):
        if Path(target).name == name:
            sys.stdout.write("writing\n")
            time.sleep(60)
        return replace(path, target)

    assert main([*arguments, str(whole)]) == 0
    with monkeypatch.context() as patched:
        patched.setattr(sys, "argv", ["shoal", *arguments, str(out)])
        patched.setattr(Path, "replace", pause)
        call = called(script, tmp_path / "log")
        call.wait_until(lambda: "writing" in call.printed)
        assert call.end(signal.SIGINT) == 130
    assert not (out / name).exists()
    assert main([*arguments, str(out), "--resume"]) == 0
    assert content(out) == content(whole)
    assert not list(out.rglob(".*"))


@pytest.mark.processes
def test_interrupted_while_it_loads_is_130_without_a_traceback(tmp_path):
    """The moment is that at which Typer is imported, long before any command is known."""
    loading = "import sys\nprint('loading', flush=True)\nimport time\ntime.sleep(60)\n"
    (tmp_path / "typer.py").write_text(loading)
    command = [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n{PROCESS}", "data"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=30)
    assert (process.returncode, printed) == (130, "shoal: interrupted\n"), "there is nothing to resume"


@pytest.mark.parametrize("source", ["--scores", "--trace"])
def test_copies_are_left_out_of_audits_of_runs_alone(source, tmp_path, capsys):
    assert main(["audit", source, str(tmp_path), "--leave-out-duplicates"]) == 2
    assert "'--leave-out-duplicates' needs a run's directory" in capsys.readouterr().err


def test_without_a_command_there_is_the_help_alone(capsys):
    assert main([]) == 2
    printed = capsys.readouterr()
    assert "Usage: shoal" in printed.out
    assert printed.err == ""


COMMANDS = ("init", "data", "run", "audit", "compare", "report", "sweep")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_help_has_an_example_and_the_exit_codes(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert main([command, "-h"]) == 0
    short = capsys.readouterr().out
    assert main([command, "--help"]) == 0
    assert capsys.readouterr().out == short
    assert f"Example: shoal {command} " in short
    assert "0 done; 1 failed; 2 bad input; 3 a --gate limit is broken; 130 interrupted" in short


@pytest.mark.processes
def test_the_shell_completes_commands_and_options():
    typed = {"COMP_WORDS": "shoal re", "COMP_CWORD": "1", "_SHOAL_COMPLETE": "complete_bash"}
    command = [sys.executable, "-m", "shoal"]
    found = subprocess.run(command, env=os.environ | typed, capture_output=True, text=True, check=False)
    assert (found.stdout.split(), found.stderr) == (["report"], "")


def test_the_device_is_that_of_the_option(config, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (tmp_path / "sweep.toml").write_text('base = "small.toml"\nseeds = [0]\n[grid]\n"local.epochs" = [1]\n')
    for command, file in (("run", config), ("sweep", tmp_path / "sweep.toml")):
        assert main([command, str(file), "--out", str(tmp_path / command), "--device", "cuda", "--quiet"]) != 0
        assert "device 'cuda' cannot be used" in capsys.readouterr().err


def test_init_writes_a_file_that_runs_and_never_overwrites(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--algorithm", "fedavg"]) == 0
    text = (tmp_path / "run.toml").read_text()
    assert main(["data", "run.toml"]) == 0
    assert "1,797 images in 10 classes" in capsys.readouterr().out
    assert main(["init"]) == 2
    assert "run.toml: exists" in capsys.readouterr().err
    assert (tmp_path / "run.toml").read_text() == text


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert main(["--help"]) == 0
    assert "red team" in capsys.readouterr().out


def test_a_warning_of_several_runs_is_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # without pytest's, so that the command adds its own
    assert main(["--version"]) == 0
    for message in ("copies", "copies", "few clients"):
        logging.getLogger("shoal").warning(message)
    assert capsys.readouterr().err.splitlines() == ["shoal: copies", "shoal: few clients"]
