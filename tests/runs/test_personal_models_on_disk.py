"""Runs whose personal models are on disk: what their directories hold, and what a crash at any moment leaves."""

import errno
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import shoal
from full_simulation import simulate_with
from run_files import content
from shoal.core.client_vectors import ClientVectors, VectorsOnDisk
from shoal.core.errors import InputError
from shoal.engine import State
from shoal.runs import directory
from shoal.runs.checkpoint import load_checkpoint, save_checkpoint
from shoal.runs.run import run
from shoal.simulation.simulation import SimulationState


@pytest.fixture(scope="module")
def config(toy_config):
    """Makes the configuration of a run of Ditto in which half of the clients take part."""

    def make(kept="disk", **changes):
        algorithm = {"name": "ditto", "rounds": 6}
        return toy_config(algorithm=algorithm, algorithm__participation=0.5, engine__personal_models=kept, **changes)

    return make


@pytest.fixture(scope="module")
def in_memory(config, tmp_path_factory):
    return run(config("memory"), tmp_path_factory.mktemp("runs") / "memory")


def outcome(out: Path) -> dict[str, bytes]:
    """`content` but for the configuration, which says where personal models are kept."""
    return {name: each for name, each in content(out).items() if name != "config.toml"}


def rows_in(out: Path) -> list[Path]:
    return sorted((out / "checkpoint").glob("*.rows"))


def stop_after(number):
    def watch(simulation, progress, report):
        if progress.state.round == number and report is not None:
            raise KeyboardInterrupt

    return watch


def halted(config, out, number=4):
    with pytest.raises(KeyboardInterrupt):
        run(config, out, resume=out.exists(), watch=stop_after(number))
    return out


def personal(out: Path) -> torch.Tensor:
    progress = load_checkpoint(out / "checkpoint")
    assert progress is not None
    return progress.state.personal["ditto"].tensor()


def test_personal_models_on_disk_change_no_byte_of_the_results(config, in_memory, tmp_path):
    out = run(config(), tmp_path / "disk")
    assert outcome(out) == outcome(in_memory)
    assert torch.equal(personal(out), personal(in_memory))
    assert len(rows_in(out)) == 1, "a file that no checkpoint refers to was left behind"
    (checkpoint,) = (out / "checkpoint").glob("round-*")
    width = personal(out).shape[1]
    assert all(each.numel() < 10 * width for each in load_file(checkpoint).values()), "it has all the models"
    assert rows_in(out)[0].stat().st_size <= 2 * 4 * personal(out).numel()


def test_reference_federations_are_trained_on_disk_too(config, tmp_path):
    asked = {"algorithm__rounds": 2, "evaluation": {"reference_federations": 2}}
    one, other = (run(config(kept, **asked), tmp_path / kept) for kept in ("memory", "disk"))
    assert outcome(one) == outcome(other)
    names = {path.name for path in (one / "references").iterdir()}
    assert names == {path.name for path in (other / "references").iterdir()}


@pytest.mark.parametrize("every", [1, 3])
def test_a_run_killed_between_vectors_and_checkpoint_resumes_to_the_same_bytes(
    config, in_memory, tmp_path, monkeypatch, every
):
    """As a kill -9 there: the rows of a round are in the file, and no checkpoint knows of them."""
    asked, saved = config(checkpoint__every=every), []

    def killed(folder, progress, observations=(), frozen=""):
        if progress.state.round >= 4:
            # Not the interrupted run's last checkpoint either: whoever is killed writes none.
            raise SystemExit
        save_checkpoint(folder, progress, observations)
        saved.append(progress.state.round)

    out = tmp_path / "killed"
    with monkeypatch.context() as patched:
        patched.setattr(directory, "save_checkpoint", killed)
        with pytest.raises(SystemExit):
            run(asked, out)
    assert saved[-1] == 3
    counted = load_checkpoint(out / "checkpoint").state.personal["ditto"].stored_in
    left = sum(path.stat().st_size for path in rows_in(out))
    assert left > 4 * counted["width"] * counted["rows"], "the round that was lost wrote no row"
    run(asked, out, resume=True)
    assert outcome(out) == outcome(in_memory)
    assert torch.equal(personal(out), personal(in_memory))
    assert len(rows_in(out)) == 1


def test_personal_models_may_move_between_memory_and_disk_on_resume(config, in_memory, tmp_path):
    out = halted(config("memory"), tmp_path / "out", 2)
    assert len(rows_in(out)) == 2, "one of each checkpoint"
    halted(config("disk"), out)
    run(config("memory"), out, resume=True)
    assert outcome(out) == outcome(in_memory)
    assert len(rows_in(out)) == 1


def test_a_missing_or_cut_off_file_is_said_in_one_sentence_and_nothing_is_lost(config, tmp_path):
    out = halted(config(), tmp_path / "out")
    for damage in ("missing", "cut off"):
        broken = shutil.copytree(out, tmp_path / damage)
        for path in rows_in(broken):
            path.unlink() if damage == "missing" else path.write_bytes(path.read_bytes()[:100])
        name = rows_in(out)[-1].name
        said = {"missing": "cannot be read: No such file", "cut off": "is cut off: it has 100 bytes"}[damage]
        with pytest.raises(InputError, match=rf"every checkpoint is damaged \(.*{re.escape(name)}: {said}") as raised:
            run(config(), broken, resume=True)
        assert "\n" not in str(raised.value)
        assert len(list((broken / "checkpoint").glob("round-*"))) == 2


def test_a_damaged_checkpoint_falls_back_to_the_rows_of_the_one_before(config, in_memory, tmp_path, caplog):
    out = halted(config(), tmp_path / "out")
    max((out / "checkpoint").glob("round-*")).write_bytes(b"nonsense")
    run(config(), out, resume=True)
    assert "is damaged; going back to the one before" in caplog.text
    assert outcome(out) == outcome(in_memory)


def test_a_checkpoint_in_memory_has_each_distinct_row_once(tmp_path):
    rows = ClientVectors.same(torch.rand(50), 9).replaced(torch.tensor([3, 5]), torch.rand(2, 50))
    state = State(2, torch.rand(1, 50), torch.rand(1), torch.full((9,), -1), personal={"a/at": rows})
    for _ in range(2):
        save_checkpoint(tmp_path, SimulationState(state))
    (path,) = tmp_path.glob("*.rows")
    assert path.stat().st_size == 3 * 4 * 50
    found = load_checkpoint(tmp_path).state.personal
    assert torch.equal(found["a/at"].tensor(), rows.tensor())
    assert len(found["a/at"].distinct()[0]) == 3


def test_on_a_full_disk_no_rows_are_left_behind(tmp_path, monkeypatch):
    def full(file, content, offset):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    rows = ClientVectors.same(torch.rand(50), 9)
    state = State(2, torch.rand(1, 50), torch.rand(1), torch.full((9,), -1), personal={"a": rows})
    with pytest.raises(OSError, match="No space left") as raised:
        save_checkpoint(tmp_path, SimulationState(state))
    assert raised.value.filename == str(tmp_path / "a-000001.rows")
    assert not list(tmp_path.iterdir())


def simulated(**changes):
    draw = torch.Generator().manual_seed(0)
    images = torch.rand(6, 8, 1, 4, 4, generator=draw)
    own = [(each, (each[:, 0, 0, 0] > 0.5).long()) for each in images]
    settings = {
        "federation": shoal.Federation.from_tensors(own, test=own[0]),
        "model": shoal.Model(lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2))),
        "algorithm": shoal.Ditto(),
        "local": shoal.LocalSGD(epochs=1, batch_size=4, learning_rate=0.3),
        "rounds": 3,
        "participation": 0.5,
    }
    return simulate_with(**settings | changes)


def test_a_simulation_without_a_directory_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    result, expected = simulated(personal_models="disk"), simulated()
    assert isinstance(result.state.personal["ditto"], VectorsOnDisk)
    assert torch.equal(result.state.personal["ditto"].tensor(), expected.state.personal["ditto"].tensor())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kept", ["memory", "disk"])
def test_a_run_that_starts_from_another_leaves_its_files_alone(tmp_path, kept):
    first = simulated(personal_models="disk", out=tmp_path / "first")
    before = {path.name: path.read_bytes() for path in rows_in(tmp_path / "first")}
    more = [simulated(start=first, personal_models=kept, out=out, rounds=2) for out in (None, tmp_path / "more")]
    whole = simulated(rounds=5)
    for result in more:
        assert torch.equal(result.state.personal["ditto"].tensor(), whole.state.personal["ditto"].tensor())
    assert before == {path.name: path.read_bytes() for path in rows_in(tmp_path / "first")}


def test_personal_models_elsewhere_than_memory_or_disk_are_refused():
    with pytest.raises(InputError, match="'personal_models' must be 'memory' or 'disk'; got 'tape'"):
        simulated(personal_models="tape")
