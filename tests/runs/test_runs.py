"""Run directories: what they hold, and what survives a crash. Processes of their own, real kill -9."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from forked_calls import called
from run_files import content, stop_after
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.core.atomic_files import write_atomically
from shoal.core.errors import InputError
from shoal.engine import ClientVectors, State
from shoal.runs import checkpoint, directory
from shoal.runs.checkpoint import load_checkpoint, save_checkpoint
from shoal.runs.result import report_of
from shoal.runs.run import run
from shoal.simulation.play import SimulationState
from unrendered import unrendered_figures


@pytest.fixture(scope="module")
def finished(toy_config, tmp_path_factory):
    """A run of six rounds, with its report, whose figures are drawn."""
    out = run(toy_config(algorithm__rounds=6), tmp_path_factory.mktemp("runs") / "whole")
    with unrendered_figures():
        report_of(out)
    return out


def test_a_run_directory_holds_what_was_promised(finished):
    assert sorted(path.name for path in finished.iterdir()) == [
        "checkpoint", "clients.csv", "config.toml", "hashes.json", "models.safetensors", "report.html", "roc.csv",
        "rounds.csv", "run.log", "samples.safetensors", "summary.json",
    ]  # fmt: skip
    assert [path.name[:12] for path in (finished / "checkpoint").iterdir()] == ["round-000006"]


def test_a_run_and_its_report_are_two_steps(finished, toy_run, tmp_path):
    assert not (toy_run(algorithm__rounds=1) / "report.html").exists()
    copy = shutil.copytree(finished, tmp_path / "copy")
    (copy / "report.html").unlink()
    assert report_of(copy) == copy / "report.html"
    pages = [(out / "report.html").read_text().replace(str(out), "RUN") for out in (copy, finished)]
    assert pages[0] == pages[1], "but for the path in its command"


def test_the_summary_has_every_key_with_a_number_or_a_short_string(finished):
    summary = json.loads((finished / "summary.json").read_text())
    expected = ["algorithm", "dataset", "seed", "rounds", "accuracy.overall", "violations.total", "migrated"]
    attacked = ("mia", "mia_auc", "mia_population", "mia_population_auc", "gap")
    per_group = ("accuracy", "train_accuracy", "loss_threshold", "violations", "exceeded", "non_members", *attacked)
    expected += [f"{key}.{group}" for key in per_group for group in ("minority", "majority")]
    expected += [f"fairness.{key}" for key in ("demographic_parity", "equal_opportunity", "equalized_odds")]
    expected += [f"seconds.{key}" for key in ("train", "choose", "red_team", "total")]
    expected += [f"clusters.{k}.{key}" for k in (0, 1) for key in ("clients", "risk", *attacked)]
    assert set(expected) <= set(summary)
    assert max(summary["non_members.minority"], summary["non_members.majority"]) < 100
    assert not [key for key in summary if "tpr_at_fpr" in key], "rates that so few non-members cannot carry"
    assert all(isinstance(value, int | float | str) and not isinstance(value, bool) for value in summary.values())
    assert (summary["algorithm"], summary["dataset"], summary["seed"], summary["rounds"]) == (
        "ifca-mir",
        "digits",
        3,
        6,
    )


def test_clients_csv_has_a_row_a_client_that_agrees_with_the_summary(finished):
    header = (finished / "clients.csv").read_text().splitlines()[0]
    assert header == (
        "client,group,cluster,examples,threshold,alpha,beta,loss,accuracy,mia,violated,"
        "exposure,exposure_low,exposure_null_high,attack,exceeded,threshold_drawn"
    )
    clients, summary = pd.read_csv(finished / "clients.csv"), json.loads((finished / "summary.json").read_text())
    assert len(clients) == 10
    assert clients["accuracy"].mean() == pytest.approx(summary["accuracy.overall"])
    for group, rows in clients.groupby("group"):
        assert rows["accuracy"].mean() == pytest.approx(summary[f"accuracy.{group}"])
        assert rows["violated"].sum() == summary[f"violations.{group}"]
    for cluster, rows in clients.groupby("cluster"):
        assert len(rows) == summary[f"clusters.{cluster}.clients"]
        assert (rows["mia"] == rows["mia"].iloc[0]).all()
    assert ((clients["mia"] > clients["threshold"]) == clients["violated"]).all()
    assert clients["threshold"].between(0.5, 0.8).all()
    assert clients["beta"].to_numpy() == pytest.approx((0.8 - clients["threshold"]).to_numpy() / 0.3)
    assert (clients["alpha"] + clients["beta"]).to_numpy() == pytest.approx(1.0)


def test_rounds_csv_has_a_row_a_round_and_cluster(finished):
    rounds = pd.read_csv(finished / "rounds.csv")
    assert list(zip(rounds["round"], rounds["cluster"], strict=True)) == [(t, k) for t in range(1, 7) for k in (0, 1)]
    assert (rounds.groupby("round")["clients"].sum() == 10).all()
    assert (rounds[rounds["round"] < 2]["risk"] == 0.5).all(), "before the first estimate, every risk is at chance"


def test_the_models_are_those_that_were_measured(finished):
    _, simulation = build(read_config(finished / "config.toml"))
    named = load_file(finished / "models.safetensors")
    clients = pd.read_csv(finished / "clients.csv")
    client = clients.iloc[0]
    network = simulation.setup.model.network().eval()
    network.load_state_dict({key[2:]: value for key, value in named.items() if key.startswith(f"{client.cluster}.")})
    test = simulation.federation.test.of_group(0)
    accuracy = (network(test.x).argmax(1) == test.y).double().mean()
    assert float(accuracy) == pytest.approx(client.accuracy)


def test_the_written_configuration_runs_again_to_the_same_end(finished, tmp_path):
    again = run(read_config(finished / "config.toml"), tmp_path / "again")
    assert content(again) == content(finished)


def test_threads_change_no_byte(toy_config, tmp_path):
    # The classifier of the attack, and a network that the loop trains, on one thread and on two.
    one, two = (
        run(
            toy_config(
                engine__threads=threads, model={"name": "digits-cnn"}, algorithm__rounds=2, red_team__attack="shadow"
            ),
            tmp_path / f"{threads}",
        )
        for threads in (1, 2)
    )
    for name in ("rounds.csv", "clients.csv", "roc.csv", "models.safetensors", "summary"):
        assert content(one)[name] == content(two)[name]


@pytest.mark.processes
@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_killed_while_it_writes_a_checkpoint_and_resumed_is_never_killed(finished, tmp_path, moment):
    """By kill -9 when the third checkpoint is absent, half written, or whole."""
    out, write = tmp_path / "killed", checkpoint.write_bytes

    def kill(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    def killed_at_the_third(path, content):
        if path.name.startswith("round-000003"):
            if moment == "before":
                kill()
            if moment == "within":
                write_atomically(path, lambda unfinished: kill(unfinished.write_bytes(content[: len(content) // 2])))
            write(path, content)
            kill()
        write(path, content)

    def until_killed():
        checkpoint.write_bytes = killed_at_the_third
        run(read_config(finished / "config.toml"), out, resume=True)

    assert called(until_killed, tmp_path / "log").end() == -signal.SIGKILL
    assert len([*(out / "checkpoint").glob("round-000003*")]) == (moment == "after")
    assert len([*(out / "checkpoint").glob(".*")]) == (moment == "within")
    run(read_config(finished / "config.toml"), out, resume=True)
    assert content(out) == content(finished)
    assert f"resume after round {3 if moment == 'after' else 2}" in (out / "run.log").read_text()
    assert not list(out.rglob(".*")), "a temporary file was left behind"


def test_a_checkpoint_gives_back_every_tensor_of_a_state(tmp_path):
    own = {
        kind: {f"{kind}.a/b": torch.full((2, 3), float(i)), "same": torch.tensor([i])}
        for i, kind in enumerate(("server", "clients", "directives", "adversary"))
    }
    state = State(2, torch.rand(2, 3), torch.rand(2, dtype=torch.float64), torch.tensor([0, 1, -1]), **own)
    save_checkpoint(tmp_path, SimulationState(state))
    found = load_checkpoint(tmp_path).state
    for kind, tensors in own.items():
        given = getattr(found, kind)
        assert given.keys() == tensors.keys()
        assert all(torch.equal(given[name], each) and given[name].dtype == each.dtype for name, each in tensors.items())
    assert found.round == 2
    assert all(torch.equal(getattr(found, name), getattr(state, name)) for name in ("models", "risks", "assignment"))


def test_a_checkpoint_has_each_distinct_personal_model_once(tmp_path):
    rows = ClientVectors.same(torch.rand(50), 9).replace_rows(torch.tensor([3, 5]), torch.rand(2, 50))
    save_checkpoint(tmp_path, SimulationState(replace(State.initial(torch.rand(1, 50), 9), personal={"a/at": rows})))
    (path,) = tmp_path.iterdir()
    assert load_file(path)["personal/a/at"].shape == (3, 50)
    found = load_checkpoint(tmp_path).state.personal["a/at"]
    assert torch.equal(found.tensor(), rows.tensor())
    assert torch.equal(found.distinct()[1], rows.distinct()[1])


@pytest.fixture(scope="module")
def interrupted(finished, tmp_path_factory):
    out = tmp_path_factory.mktemp("interrupted") / "out"
    with pytest.raises(KeyboardInterrupt):
        run(read_config(finished / "config.toml"), out, watch=stop_after(4))
    return out


@pytest.fixture
def halted(interrupted, tmp_path):
    """A run that stopped after its fourth round, with its checkpoints."""
    return shutil.copytree(interrupted, tmp_path / "halted")


def resume(out, **changes):
    return run(read_config(out / "config.toml"), out, resume=True, **changes)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied"])
def test_a_damaged_checkpoint_falls_back_to_the_one_before_and_says_so(halted, finished, damage, caplog):
    before, last = sorted((halted / "checkpoint").iterdir())
    assert "round-000003" in before.name
    raw = bytearray(last.read_bytes())
    raw[len(raw) // 2] ^= 1
    last.write_bytes({"truncated": bytes(raw[:-100]), "flipped": bytes(raw), "emptied": b""}[damage])
    resume(halted)
    assert "is damaged; using the one before" in caplog.text
    assert content(halted) == content(finished)


def test_a_round_played_again_replaces_its_damaged_checkpoint(halted):
    damaged = sorted((halted / "checkpoint").iterdir())[-1]
    damaged.write_bytes(b"")
    with pytest.raises(KeyboardInterrupt):
        resume(halted, watch=stop_after(4))
    left = sorted(path.name[:12] for path in (halted / "checkpoint").iterdir())
    assert left == ["round-000003", "round-000004"]
    assert not damaged.exists() or damaged.stat().st_size > 0


def test_with_every_checkpoint_damaged_it_says_so_and_loses_nothing(halted):
    for path in (halted / "checkpoint").iterdir():
        path.write_bytes(b"nonsense")
    with pytest.raises(InputError, match="every checkpoint is damaged"):
        resume(halted)
    assert len(list((halted / "checkpoint").iterdir())) == 2


def test_checkpoints_every_few_rounds(toy_config, tmp_path):
    kept = []

    def watch(simulation, progress, report):
        kept.append([path.name[:12] for path in sorted((tmp_path / "out/checkpoint").iterdir())])

    run(toy_config(algorithm__rounds=6, checkpoint__every=4), tmp_path / "out", watch=watch)
    assert kept == [[], [], [], [], ["round-000004"], ["round-000004"], ["round-000004", "round-000006"]]


def test_an_existing_directory_is_left_alone(finished, toy_config):
    before = content(finished)
    with pytest.raises(InputError, match="exists already"):
        run(toy_config(algorithm__rounds=6), finished)
    with pytest.raises(InputError, match=r"seed = 3 \(got 7\)"):
        run(toy_config(algorithm__rounds=6, seed=7), finished, resume=True)
    with pytest.raises(InputError, match=r"'algorithm\.rounds' must be at least 6 to resume .got 5."):
        run(toy_config(algorithm__rounds=5), finished, resume=True)
    assert resume(finished) == finished
    assert content(finished) == before


@pytest.mark.parametrize(
    ("path", "make", "changes", "resume", "words"),
    [
        ("folder", lambda out: (out.mkdir(), (out / "thesis.tex").write_text("")), {}, True, "is not a run directory"),
        ("file", lambda out: out.write_text(""), {}, True, "is not a directory"),
        ("file/out", lambda out: out.parent.write_text(""), {}, False, "cannot be written"),
        ("out", lambda out: None, {"data__clients": 1000}, False, r"1000 clients x 12 \+ 60 shadow \+ 40 test\) \(got"),
    ],
    ids=["foreign", "file", "unwritable", "too few examples"],
)
def test_where_a_run_cannot_be_nothing_is_written(toy_config, tmp_path, path, make, changes, resume, words):
    make(tmp_path / path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match=words):
        run(toy_config(**changes), tmp_path / path, resume=resume)
    assert sorted(tmp_path.rglob("*")) == before


def test_divergence_stops_with_round_client_and_rate_and_keeps_the_last_checkpoint(toy_config, tmp_path):
    out = tmp_path / "out"
    # One step to weights of about 1e20, in which the losses of the second round overflow.
    local = {"steps": 1, "batch_size": "all", "learning_rate": 1e20}
    with pytest.raises(InputError, match=r"NaN in round 2 at client \d+ with learning rate 1e\+20"):
        run(toy_config(local=local), out)
    assert [path.name[:12] for path in (out / "checkpoint").iterdir()] == ["round-000001"]
    assert not (out / "summary.json").exists()


def test_an_interrupted_run_keeps_its_last_round_whatever_the_interval(toy_config, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(toy_config(checkpoint__every=100), tmp_path / "out", watch=stop_after(3))
    assert [path.name[:12] for path in (tmp_path / "out/checkpoint").iterdir()] == ["round-000003"]


def test_a_log_that_is_a_symbolic_link_is_not_written(halted, tmp_path):
    (halted / "run.log").unlink()
    (tmp_path / "precious").write_text("mine")
    (halted / "run.log").symlink_to(tmp_path / "precious")
    with pytest.raises(InputError, match=r"run\.log: is a symbolic link; remove it"):
        resume(halted)
    assert (tmp_path / "precious").read_text() == "mine"


def test_a_log_that_cannot_be_written_is_an_error_that_names_it(halted, monkeypatch):
    monkeypatch.setattr(directory._RunLog, "_open", lambda _: Path("/dev/full").open("a", encoding="utf-8"))  # noqa: SIM115
    with pytest.raises(OSError, match="No space left on device") as raised:
        resume(halted)
    assert raised.value.filename == str(halted / "run.log")


def test_rounds_without_a_client_are_logged(toy_config, tmp_path):
    out = run(toy_config(algorithm__participation=0.0, algorithm__rounds=2), tmp_path / "out")
    assert "round 1: no client took part" in (out / "run.log").read_text()


REFUSED = [
    ({"record": {"updates": "every"}}, r"'record.updates' must be an integer \(got 'every'"),
    ({"canaries": {"per_client": 12}}, r"\[canaries\]: .*'per_client' = 12"),
    ({"canaries": {"per_client": 2, "clients": 11}}, "at least 11 of 10 clients"),
    ({"canaries": {"clients": "some"}}, "'canaries.clients' must be"),
    ({"evaluation__view": "all"}, r"'evaluation.view' must be 'outsider', 'client' or 'server' \(got 'all'"),
    ({"privacy__view": ["client"]}, "'view' must be .*10 views"),
    ({"evaluation__reference_federations": -1}, r"'evaluation.reference_federations' must be at least 0 \(got -1"),
    (
        {"evaluation__reference_federations": 2, "property_attack": {"warm_up": 1, "period": 2}}
        | {"data__groups": None, "data__task": "class/thick", "red_team__attack": "gap"}
        | {"data__clients": 3, "data__examples_per_client": 200, "data__shadow_examples": 0, "red_team__every": 0}
        | {"algorithm__name": "fedavg"},
        "'reference_federations' must be 0 .*got 2",
    ),
    (
        {"evaluation__reference_federations": 2, "data__test_examples": 1, "data__groups": None}
        | {"red_team__attack": "gap"},
        "'reference_federations' above 0 needs at least 2",
    ),
]


@pytest.mark.parametrize(("changes", "sentence"), REFUSED, ids=str)
def test_settings_that_cannot_be_are_one_sentence_before_anything_is_written(toy_config, tmp_path, changes, sentence):
    with pytest.raises(InputError, match=sentence) as refused:
        run(toy_config(**changes), tmp_path / "out")
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
