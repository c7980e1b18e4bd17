"""Flower's programs on loopback, started together and ended with all that they started."""

import contextlib
import os
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal

from shoal.core.errors import ShoalError

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
APP = DEPLOY / "app"
"""The Flower app."""

FRONT = DEPLOY / "nginx.conf"
"""What lets nodes through to the SuperLink's Fleet API alone."""

TASK_WORKER = DEPLOY / "task_worker.py"
"""What answers a SuperNode's messages by the installed package."""

KEEP_RUNNING = DEPLOY / "keep-running"
"""What starts a program again that has ended."""

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
"""The program; None: it is not installed."""


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def environment(home: Path) -> dict[str, str]:
    """Of every program: Flower's files in ``home``, no telemetry, no look for updates, nothing installed on the way."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return os.environ | {
        "PATH": path,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.5",
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
    }


@dataclass
class Programs:
    """Programs by name, each the leader of a process group, whose output is in files.

    Leaving the context ends every group: Flower's own children outlive their parents otherwise.

    Args:
        folder: of the programs' files, ``NAME.log``; Flower's own are in its ``flwr``.
    """

    folder: Path
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> "Programs":
        self.home.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def home(self) -> Path:
        """Flower's own folder."""
        return self.folder / "flwr"

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a program of this Python's environment in ``folder``, where an app may save files such as its model."""
        program = beside_python(command)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                program,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(self.home),
                start_new_session=True,
            )

    def call(self, command: Sequence[str], folder: Path, seconds: float = 120) -> str:
        """What a program prints, that ends by itself, run in ``folder``.

        Raises:
            ShoalError: it failed, or did not end in time.
        """
        program = beside_python(command)
        try:
            done = subprocess.run(
                program,
                cwd=folder,
                env=environment(self.home),
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ShoalError(f"'{shlex.join(command)}' did not end within {seconds:g} seconds") from error
        if done.returncode:
            raise ShoalError(f"'{shlex.join(command)}' failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    def log(self, name: str) -> str:
        """What a program has written so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """End a program, its group and all that they started at once, as `kill -9` does."""
        program = self.running.pop(name)
        # Flower's SuperExec and the ServerApp are in sessions of their own, and would hold the run's directory longer.
        started = descendants({program.pid})
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        program.wait()

    def end(self, seconds: float = 5.0) -> None:
        """End all programs: politely, and then by force what is left of their groups and of what they started."""
        started = descendants({program.pid for program in self.running.values()})
        for program in self.running.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(program.pid, signal.SIGTERM)
        end = time.monotonic() + seconds
        while time.monotonic() < end and any(_alive(program.pid) for program in self.running.values()):
            for program in self.running.values():
                program.poll()
            time.sleep(0.05)
        for name in list(self.running):
            self.kill(name)
        for process in started & descendants({os.getpid(), 1}):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        end = time.monotonic() + seconds
        while time.monotonic() < end and started & descendants({os.getpid(), 1}):
            time.sleep(0.05)


def descendants(roots: set[int]) -> set[int]:
    """The processes that those of ``roots`` have started, and so on, without ended ones; none without ``/proc``."""
    parents = dict[int, int]()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name in parentheses may hold anything, also spaces.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":  # It has ended, and its parent has not asked how.
                parents[int(stat.parent.name)] = int(parent)
    found: set[int] = set()
    wave = roots
    while wave:
        wave = {child for child, parent in parents.items() if parent in wave} - found
        found |= wave
    return found


def _alive(group: int) -> bool:
    """Whether a process group has any process."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def beside_python(command: Sequence[str]) -> list[str]:
    """``command`` with the path of its program, which is beside this Python."""
    beside = Path(sys.executable).parent / command[0]
    return [str(beside) if beside.exists() else command[0], *command[1:]]


def wait_until(done: Callable[[], bool], seconds: float, what: str, poll: float = 0.2) -> None:
    """Wait until something holds.

    Raises:
        ShoalError: it did not within so many ``seconds``.
    """
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise ShoalError(f"{what}: not within {seconds:g} seconds")
        time.sleep(poll)


def listens(port: int) -> bool:
    """Whether somebody accepts connections at a port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def status(door: str, path: str, authority: Path, body: bytes | None = b"") -> int:
    """The HTTP status of a question to the nodes' door; no body: it is asked by GET."""
    request = urllib.request.Request(f"https://{door}{path}", data=body)
    request.add_header("Content-Type", "application/protobuf")
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with urllib.request.urlopen(request, context=context, timeout=30) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def node_config(values: Mapping[str, object]) -> str:
    """A ``--node-config`` of these values.

    >>> node_config({"partition-id": 0, "risk": "client"})
    'partition-id=0 risk="client"'
    """
    return " ".join(
        f'{key}="{value}"' if isinstance(value, str | Path) else f"{key}={value}" for key, value in values.items()
    )


@dataclass
class Loopback:
    """A SuperLink and SuperNodes on this machine, for trials and tests.

    Args:
        programs: that are started.
        certificates: a folder of `certificates.make_certificates`: TLS, and registered SuperNodes alone; None: neither.
        port: of the SuperLink.
        front: the port of nginx, once it is started.
    """

    programs: Programs
    certificates: Path | None = None
    port: int = field(default_factory=free_port)
    front: int | None = None

    @property
    def address(self) -> str:
        """Of the SuperLink."""
        return f"127.0.0.1:{self.port}"

    @property
    def door(self) -> str:
        """Where nodes ask: the front, or the SuperLink itself."""
        return f"127.0.0.1:{self.front or self.port}"

    def start_server(self, *more: str) -> None:
        """Start the SuperLink, or start it again where it was, and wait until it listens; ``more`` are its options."""
        folder = self.certificates
        trust = "insecure = true" if folder is None else f'root-certificates = "{folder / "ca.crt"}"'
        table = f'[superlink.loopback]\naddress = "{self.address}"\n{trust}\n'
        (self.programs.home / "config.toml").write_text(f'[superlink]\ndefault = "loopback"\n\n{table}')
        where = ["--host", "127.0.0.1", "--port", str(self.port)]
        database = ["--database", str(self.programs.folder / "superlink.db")]
        security = ["--insecure"]
        if folder is not None:
            authority, server = (
                ["--ssl-ca-certfile", str(folder / "ca.crt")],
                ["--ssl-certfile", str(folder / "server.pem")],
            )
            security = [*authority, *server, "--ssl-keyfile", str(folder / "server.key"), "--enable-supernode-auth"]
        self.programs.start("superlink", ["flower-superlink", *security, *where, *database, *more])
        wait_until(lambda: listens(self.port), 120, "the SuperLink does not listen")

    def start_front(self) -> None:
        """Start nginx with deploy/nginx.conf before the SuperLink; nodes that start from now on ask there."""
        assert self.certificates is not None
        folder, port = self.programs.folder / "front", free_port()
        folder.mkdir(exist_ok=True)
        (folder / "keys").symlink_to(self.certificates.absolute())
        text = FRONT.read_text().replace("listen 8443", f"listen 127.0.0.1:{port}")
        (folder / "nginx.conf").write_text(text.replace("127.0.0.1:8000", self.address))
        # Its workers could not write into a folder of root's.
        user = ["-g", "user root;"] if os.geteuid() == 0 else []
        configuration = ["-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", "error.log"]
        self.programs.start("nginx", [NGINX or "nginx", *configuration, *user])
        wait_until(lambda: listens(port), 60, "nginx does not listen")
        self.front = port

    def register(self, public_key: Path) -> str:
        """Let the SuperNode with this key take part; returns what Flower prints."""
        return self.programs.call(["flwr", "supernode", "register", str(public_key), "loopback"], self.programs.folder)

    def start_node(
        self,
        name: str,
        config: Mapping[str, object],
        *,
        key: Path | None = None,
        apps: Literal["forks", "programs", "none"] = "forks",
        plain: bool = False,
        program: Sequence[str] = ("flower-supernode",),
    ) -> str:
        """Start a SuperNode; returns the address of its Runtime API, where a `task_worker` asks for messages.

        Args:
            name: of the program.
            config: of the node.
            key: its private key.
            apps: whether its ClientApp runs in forks of one process (`task_worker`), in programs of Flower, or nowhere.
            plain: whether it does without TLS where the SuperLink has it.
            program: the SuperNode, or what starts it.
        """
        port, folder = free_port(), self.certificates
        security = ["--insecure"]
        if folder is not None and not plain:
            security = ["--root-certificates", str(folder / "ca.crt")]
        security += [] if key is None else ["--auth-supernode-private-key", str(key)]
        where = ["--superlink", self.door, "--host", "127.0.0.1", "--port", str(port)]
        isolation = ["--isolation", "subprocess" if apps == "programs" else "process"]
        self.programs.start(name, [*program, *security, *where, *isolation, "--node-config", node_config(config)])
        if apps == "forks":
            worker = ["python", str(TASK_WORKER), f"127.0.0.1:{port}"]
            self.programs.start(f"{name}-worker", worker)
        return f"127.0.0.1:{port}"

    def kill_node(self, name: str) -> None:
        """End a SuperNode as `kill -9` does, with all that belongs to it."""
        self.programs.kill(name)
        if f"{name}-worker" in self.programs.running:
            self.programs.kill(f"{name}-worker")

    def run(self, app: Path, config: Mapping[str, object]) -> str:
        """Hand the app in the folder ``app`` to the SuperLink with this run configuration; returns what it prints."""
        return self.programs.call(["flwr", "run", ".", "loopback", "--run-config", node_config(config)], app)
