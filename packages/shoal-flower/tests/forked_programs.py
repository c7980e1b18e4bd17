"""Flower's programs as forks of one process that has loaded them, PyTorch and Shoal once, for all tests of processes.

A program is what it is by its command: its entry point with its arguments, its environment, and a process group and a
log of its own; only `exec` and the second of imports are missing. What a program starts itself is started as usual;
but the SuperLink's SuperExec, and the ServerApp that it starts, are forks too. `test_documented.py` runs the commands
themselves.
"""

import contextlib
import gc
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from processes import TASK_WORKER, Programs, environment

from forked_calls import run_to_exit
from shoal.core.errors import ShoalError

ENTRY_POINTS = ("flwr", "flower-superlink", "flower-supernode", "flower-superexec", "flwr-serverapp")

POPEN = subprocess.Popen


def become(
    load: Mapping[str, Callable[[], Any]], command: Sequence[str], env: Mapping[str, str], folder: str, log: str
) -> NoReturn:
    """The rest of a fork's life: it is the program of a command, in a process group of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    output = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    sys.argv = list(command)
    if command[0] == "flower-superexec":  # One thread: it may be forked.
        subprocess.Popen = lambda command, **_: os.fork() or live(load, command, env, folder, log)
    else:
        subprocess.Popen = POPEN
    load[command[0]]()
    sys.exit()


def live(*program: Any, answered: socket.socket | None = None) -> NoReturn:
    """`become`, and nothing of what called it afterwards: an interpreter that has all of this ends in two seconds."""

    def answer(code: Any) -> None:
        with contextlib.suppress(OSError):  # Where nobody waits for it.
            if answered:
                answered.sendall(f"{code}\n".encode())

    run_to_exit(lambda: become(*program), answer)


def task_worker() -> None:
    """The program beside a SuperNode: its address, and a file whose ``app`` answers, as a node may that was changed."""
    import runpy  # noqa: PLC0415

    import task_worker  # noqa: PLC0415

    from shoal_flower.client import client_app  # noqa: PLC0415

    task_worker._POLL = 0.5  # Asking a SuperNode ten times a second costs it more than the rounds of these tests.
    address, *code = sys.argv[1:]
    task_worker.work(address, runpy.run_path(code[0])["app"] if code else client_app.app)


def serve(path: str) -> None:
    """Fork a program for each request at a socket: its process, and after its end its exit code, are the answer."""
    import task_worker as _  # noqa: PLC0415
    from flwr.superlink.servicer.fleet import fleet_handlers  # noqa: PLC0415

    from shoal_flower.server import server_app as _  # noqa: PLC0415, F811

    fleet_handlers.HEARTBEAT_MIN_INTERVAL = 1  # Else a test waits long for a SuperLink to miss a node.
    scripts = {each.name: each for each in entry_points(group="console_scripts") if each.name in ENTRY_POINTS}
    load: dict[str, Callable[[], Any]] = {name: each.load() for name, each in scripts.items()}
    load["task-worker"] = task_worker
    logging.getLogger().handlers.clear()  # Opacus' handler, which would write each line of Flower's again.

    def reap(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    signal.signal(signal.SIGCHLD, reap)
    gc.collect()
    gc.freeze()  # Else a fork's first collection copies all that it shares.
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            with connection:
                request = json.loads(connection.makefile().readline())
                if os.fork() == 0:
                    listener.close()
                    connection.sendall(f"{os.getpid()}\n".encode())
                    live(load, *(request[name] for name in ("command", "env", "folder", "log")), answered=connection)


@dataclass
class Fork:
    """A program that runs, as `Programs` asks of it."""

    pid: int

    def poll(self) -> int | None:
        """None while it runs."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return 0
        return None

    def wait(self) -> None:
        """Wait for its end."""
        while self.poll() is None:
            time.sleep(0.01)


class ForkedPrograms(Programs):
    """`Programs` in a folder that are forks of the process at an address."""

    def __init__(self, folder: Path, address: str) -> None:
        super().__init__(folder)
        self.address = address

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start one of Flower's programs or the task worker."""
        if command[0] not in ENTRY_POINTS:
            if str(TASK_WORKER) not in command:
                return super().start(name, command)
            command = ["task-worker", *command[2:]]
        own = ["--isolation", "process"] if command[0] == "flower-superlink" else []
        self._fork(name, [*command, *own])
        if own:
            words = dict(pairwise(command))
            trust = (
                ["--root-certificates", words["--ssl-ca-certfile"]] if "--ssl-ca-certfile" in words else ["--insecure"]
            )
            address = ["--runtime-api-address", f"{words['--host']}:{words['--port']}"]
            self._fork(f"{name}-exec", ["flower-superexec", *trust, *address])
        return None

    def _fork(self, name: str, command: Sequence[str]) -> None:
        with self._asked(command, self.folder, self.folder / f"{name}.log") as answers:
            self.running[name] = Fork(int(next(answers)))  # type: ignore[assignment]

    def call(self, command: Sequence[str], folder: Path, seconds: float = 120) -> str:
        """What one of Flower's commands prints."""
        if command[0] not in ENTRY_POINTS:
            return super().call(command, folder, seconds)
        log = self.folder / "call.log"
        log.unlink(missing_ok=True)
        with self._asked(command, folder, log, seconds) as answers:
            _, *code = answers
        said = log.read_text()
        if code != ["0\n"]:
            raise ShoalError(f"'{' '.join(command)}' failed: {said}")
        return said

    def kill(self, name: str) -> None:
        """End a program, and of a SuperLink its SuperExec too, as `Programs.kill` does."""
        for each in (name, f"{name}-exec"):
            if each in self.running:
                super().kill(each)

    @contextlib.contextmanager
    def _asked(self, command: Sequence[str], folder: Path, log: Path, seconds: float = 60) -> Iterator[Iterator[str]]:
        request = {"command": list(command), "env": environment(self.home), "folder": str(folder), "log": str(log)}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(seconds)
            connection.connect(self.address)
            connection.sendall(f"{json.dumps(request)}\n".encode())
            with connection.makefile() as answers:
                yield answers


@contextlib.contextmanager
def forking(folder: Path) -> Iterator[str]:
    """The process that forks, and the address of its socket."""
    path, env = str(folder / "forks"), environment(folder) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        try:
            yield path
        finally:
            program.terminate()


if __name__ == "__main__":
    serve(sys.argv[1])
