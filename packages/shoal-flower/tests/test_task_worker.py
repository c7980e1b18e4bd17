"""ClientApps in forks of one process."""

import importlib.metadata
import logging
import os
import runpy
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import task_worker
from processes import wait_until


class Done(BaseException):
    """Ends the worker's loop."""


class Tasks:
    """A SuperNode's Runtime API that hands out two tasks, and ends the worker once the second one is done."""

    def __init__(self, done: Path) -> None:
        self.tokens, self.done = ["lost", "next"], done

    def AcquireTask(self, request: object) -> object:  # noqa: N802 - Flower's name
        del request
        token = self.tokens.pop(0) if self.tokens else ""
        if not token and self.done.exists():
            raise Done
        return SimpleNamespace(token=token, HasField=lambda name: name == "task" and bool(token))


@pytest.mark.processes
def test_a_message_whose_contents_never_come_does_not_hold_up_the_next(tmp_path, monkeypatch):
    lost, done = tmp_path / "lost", tmp_path / "done"

    def answer(address: str, token: str, app: object) -> None:
        if token == "lost":
            lost.write_text(str(os.getpid()))
            time.sleep(30)
        else:
            done.write_text("")

    monkeypatch.setattr(task_worker, "_answer", answer)
    monkeypatch.setattr(task_worker.RuntimeHttpClient, "from_server_address", staticmethod(lambda **_: Tasks(done)))
    with pytest.raises(Done):
        task_worker.work("127.0.0.1:1")
    wait_until(lost.exists, 60, "the first message's fork")
    wait_until(lambda: lost.read_text() != "", 60, "its number")
    # It still runs: this raises otherwise.
    os.kill(int(lost.read_text()), signal.SIGKILL)
    os.waitpid(int(lost.read_text()), 0)


@pytest.mark.parametrize(
    ("sent", "said"), [(3600.0, "3600 seconds behind"), (-3700.0, "3600 seconds ahead"), (-50, "")]
)
def test_a_clock_that_is_an_hour_off_is_said(caplog, monkeypatch, sent, said):
    monkeypatch.setattr(task_worker.time, "time", lambda: 1e9)
    task_worker._compare_clocks(1e9 + sent, 100.0)
    assert said in caplog.text
    assert bool(caplog.text) == bool(said)


def test_a_server_writes_no_line_into_the_nodes_log_but_in_a_sentence_of_it(capsys, monkeypatch):
    monkeypatch.setattr(task_worker, "work", lambda address: None)
    monkeypatch.setattr(task_worker.signal, "signal", lambda *_: None)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    task_worker.main(["127.0.0.1:1"])
    forged = "the server names 'x\n2026-01-01 00:00:00 INFO epsilon 0.1\x1b[2J\r'"
    try:
        raise ValueError(forged)
    except ValueError:
        logging.getLogger("shoal").exception("refused: %s", forged)
    first, *others = capsys.readouterr().err.rstrip("\n").split("\n")
    assert "refused: the server names 'x" in first
    assert len(others) > 2
    assert all(line.startswith("    ") for line in others)
    assert "".join((first, *others)).isprintable()


def test_another_version_of_flower_is_refused(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda _: "1.43.0")
    with pytest.raises(SystemExit, match=r"Flower must be 1\.42 \(got 1\.43\.0\)"):
        runpy.run_path(task_worker.__file__)
