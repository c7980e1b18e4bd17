"""Calls in forks of the tests' own process, which has PyTorch and Shoal loaded: a program takes seconds to load them.

Programs themselves are started by `tests/cli`, `tests/sweeps` and `packages/shoal-flower/tests`.
"""

import os
import runpy
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import process
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from joblib.externals.loky.backend import fork_exec

LOKY = "joblib.externals.loky.backend.popen_loky_posix"
EXEC = fork_exec.fork_exec

PROCESS = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("shoal", run_name="__main__")
"""
"""`python -m shoal`, also where the tests run in the background of a shell, which ignores Ctrl-C."""


@dataclass
class Call:
    """A call that runs in a process of its own, as a program does: its result is the exit code."""

    pid: int
    log: Path
    code: int | None = None

    @property
    def printed(self) -> str:
        """What it has written to standard output and standard error."""
        return self.log.read_text()

    def wait_until(self, done: Callable[[], object]) -> None:
        """Wait until something holds while it runs."""
        while not done():
            assert os.waitpid(self.pid, os.WNOHANG) == (0, 0), f"it ended before: {self.printed}"
            time.sleep(0.005)

    def end(self, sent: signal.Signals | None = None) -> int:
        """Send it a signal and wait for its exit code, which is negative where the signal ended it."""
        if self.code is None:
            if sent is not None:
                os.kill(self.pid, sent)
            self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code


def called(act: Callable[[], int | None], log: Path) -> Call:
    """Start a call that writes to ``log``; it obeys Ctrl-C also where the tests run in the background of a shell."""
    log.touch()
    if pid := _forked():
        return Call(pid, log)
    process._children = set()  # As multiprocessing's own forks: those of the tests are not this call's to end.
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return _live(act)


@contextmanager
def workers_are_forks() -> Iterator[None]:
    """Inside it joblib's worker processes are forks, which get their work by the same pipe."""

    def start(command: Sequence[str], keep: Collection[int], env: Mapping[str, str] | None = None) -> int:
        if LOKY not in command:
            return EXEC(command, keep, env=env)
        if pid := _forked():
            return pid
        # Locks of run directories would be the worker's too; a number that were free would be closed by its old owner.
        nothing = os.open(os.devnull, os.O_RDWR)
        for each in [int(path.name) for path in Path("/dev/fd").iterdir()]:
            if each > 2 and each not in keep:
                os.dup2(nothing, each)
        os.environ.update(env or {})
        sys.argv = [*command[2:]]
        return _live(lambda: runpy.run_module(LOKY, run_name="__main__"))

    with patch.object(fork_exec, "fork_exec", start):
        yield


def _forked() -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # A process with threads is forked; none of them is at work.
        return os.fork()


def _live(act: Callable[[], Any]) -> NoReturn:
    warnings.simplefilter("ignore")  # A module runs that is loaded already.
    run_to_exit(act)


def run_to_exit(act: Callable[[], Any], ended: Callable[[Any], None] = lambda _: None) -> NoReturn:
    """The rest of a fork's life, without what its parent does at its end; ``ended`` is told the exit code."""
    code: Any = 1
    try:
        code = act() or 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        ended(code)
        os._exit(code if isinstance(code, int) else 1)
