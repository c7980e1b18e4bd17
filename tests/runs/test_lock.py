"""The lock of a run directory: two runs never mix in it, and a killed one blocks nobody."""

import fcntl
import signal
import sys
import threading
import time

import pytest

from forked_calls import called
from run_files import content
from shoal.config.build import resolve
from shoal.core.errors import InputError
from shoal.runs.directory import lock_folder
from shoal.runs.run import run


@pytest.fixture
def holder(tmp_path):
    """A process that is running in tmp_path/out, and is killed at the end."""
    out, log = tmp_path / "out", tmp_path / "holder.log"
    out.mkdir()

    def hold():
        with lock_folder(out):
            sys.stdout.write("locked\n")
            time.sleep(600)

    process = called(hold, log)
    process.wait_until(lambda: process.printed)
    yield process
    process.end(signal.SIGKILL)


@pytest.mark.processes
def test_a_run_beside_a_living_one_is_refused_and_a_killed_one_blocks_nobody(toy_config, tmp_path, holder):
    config, out = toy_config(algorithm__rounds=1), tmp_path / "out"
    with pytest.raises(InputError, match="out: in use by another run"):
        run(config, out, resume=True)
    assert [path.name for path in out.iterdir()] == ["run.log"], "something was written"
    assert holder.end(signal.SIGKILL) == -signal.SIGKILL
    run(config, out, resume=True)
    assert (out / "summary.json").exists()
    assert not list(tmp_path.rglob(".*")), "a lock file was left behind"


def test_of_two_runs_of_one_configuration_one_goes_on_alone(toy_config, tmp_path):
    config, out, refused = toy_config(algorithm__rounds=2), tmp_path / "out", []
    whole = run(config, tmp_path / "whole")

    def start_another(simulation, progress, report):
        for resume in (False, True):
            with pytest.raises(InputError) as caught:
                run(config, out, resume=resume)
            refused.append(str(caught.value))

    run(config, out, watch=start_another)
    assert len(refused) == 6, "before the first round, and after both"
    assert all("exists already" in each for each in refused[::2])
    assert all("in use by another run" in each for each in refused[1::2])
    assert content(out) == content(whole)


def test_a_directory_made_since_it_was_looked_at_is_refused(toy_config, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def resolve_slowly(*arguments):
        out.mkdir()
        return resolve(*arguments)

    monkeypatch.setattr("shoal.runs.run.resolve", resolve_slowly)
    with pytest.raises(InputError, match="exists already"):
        run(toy_config(), out)
    assert list(out.iterdir()) == []


def test_two_threads_are_kept_apart_too(tmp_path):
    (tmp_path / "out").mkdir()
    errors = []

    def enter():
        try:
            with lock_folder(tmp_path / "out"):
                pass
        except InputError as error:
            errors.append(str(error))

    with lock_folder(tmp_path / "out"):
        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()
    enter()
    assert len(errors) == 1


def test_a_file_system_without_locks_is_a_warning(tmp_path, monkeypatch, caplog):
    def unsupported(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with lock_folder(tmp_path):
        pass
    assert "cannot be locked (Function not implemented)" in caplog.text
