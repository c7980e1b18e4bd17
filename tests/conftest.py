"""Toy federations that train in milliseconds, and toy runs and sweeps that take less than a second."""

import _posixsubprocess
import copy
import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli_w
import torch
from torch import nn

from shoal.config.schema import Config, parse_config
from shoal.core.randomness import Stream
from shoal.data import Examples, Federation
from shoal.engine import Engine, State
from shoal.models import MLP, Model

# Toy tensors gain nothing from PyTorch's second thread, and beside other processes two threads mostly wait for each
# other: of the tests of training they took three times the CPU time. The engine has threads of its own.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"  # Of the processes that tests start.

# No test cuts the power: what is written need not have reached the disk, which takes 15 ms a file.
os.fsync = lambda _: None

Build = Callable[..., Federation]

STARTS = {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
"""Audit events of new processes."""
_running: list[pytest.Item] = []


def _audit(event: str, _: object) -> None:
    if event in STARTS and _running:
        raise AssertionError(f"{_running[0].nodeid} starts a process ({event}): mark it `processes`")


def _fork_exec(*arguments: Any) -> int:
    sys.audit("subprocess.Popen")  # joblib and multiprocessing bypass Popen with it.
    return FORK_EXEC(*arguments)


FORK_EXEC = _posixsubprocess.fork_exec
_posixsubprocess.fork_exec = _fork_exec
sys.addaudithook(_audit)


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end, so no search for garbage need go through it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Where tests that start processes are left out (`make test`), none of the others may start one."""
    _running[:] = [item] if item.config.getoption("markexpr") == "not processes" else []
    try:
        return (yield)
    finally:
        _running.clear()


TOY = {
    "seed": 3,
    "data": {
        "source": "digits",
        "clients": 10,
        "examples_per_client": 12,
        "shadow_examples": 60,
        "test_examples": 40,
        "groups": {
            "minority": {"share": 0.3, "rotation": [0, 20]},
            "majority": {"share": 0.7, "rotation": [60, 90]},
        },
    },
    "model": {"name": "mlp", "hidden": 16},
    "algorithm": {"name": "ifca-mir", "rounds": 4},
    "local": {"batch_size": 6},
    "red_team": {"every": 2, "attack": "loss-threshold", "shadow_models": 2},
    "evaluation": {"baselines": False},
}
"""Two groups of handwritten digits, two models, a red team: the cheapest run that has every file and every figure."""


def toy_table(**changes: Any) -> dict[str, Any]:
    """`TOY` with changes: ``algorithm__rounds=2`` sets algorithm.rounds, and None removes a key."""
    table = copy.deepcopy(TOY)
    for key, value in changes.items():
        section = table
        *path, last = key.split("__")
        for part in path:
            section = section.setdefault(part, {})
        if value is None:
            del section[last]
        else:
            section[last] = copy.deepcopy(value)
    return table


@pytest.fixture
def _unrendered_figures() -> Iterator[None]:
    """Figures are drawn and empty: for tests of words where others are rendered, and of figures that can be drawn."""
    from unrendered import unrendered_figures  # noqa: PLC0415 - loads matplotlib

    with unrendered_figures():
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_figures() -> Iterator[None]:
    """Pages and sweeps have empty figures but where `_rendered_figures` or `_unrendered_figures` are used: to draw them
    takes most of the time.
    """
    from unrendered import undrawn_figures  # noqa: PLC0415 - loads matplotlib

    with undrawn_figures():
        yield


@pytest.fixture(scope="module")
def _rendered_figures() -> Iterator[None]:
    """Figures are rendered, for tests that read them or compare the bytes of files: those of a whole module."""
    from unrendered import rendered_figures  # noqa: PLC0415 - loads matplotlib

    with rendered_figures():
        yield


@pytest.fixture(scope="session")
def toy_config() -> Callable[..., Config]:
    """Makes the configuration of a small run, from the changes that `toy_table` takes."""
    return lambda **changes: parse_config(toy_table(**changes), "test")


@pytest.fixture(scope="session")
def toy_run(toy_config, tmp_path_factory) -> Callable[..., Path]:
    """Returns the directory of a finished run of `toy_config`, which is made once and which no test may change."""
    from shoal.runs.run import run  # noqa: PLC0415 - most tests need no runs

    made: dict[str, Path] = {}

    def finished(**changes: Any) -> Path:
        key = repr(sorted(changes.items()))
        if key not in made:
            made[key] = run(toy_config(**changes), tmp_path_factory.mktemp("runs") / "toy")
        return made[key]

    return finished


@pytest.fixture(scope="session")
def toy_sweep() -> Callable[..., Path]:
    """Writes the text of a sweep's file beside its base, a small run with changes, and returns the file's path."""

    def write(folder: Path, text: str, **changes: Any) -> Path:
        (folder / "base.toml").write_text(tomli_w.dumps(toy_table(**changes)))
        path = folder / "sweep.toml"
        path.write_text(text)
        return path

    return write


class TinyCNN(nn.Module):
    """A convolution, a pooling, a linear layer: 6x6 images in 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1)
        self.output = nn.Linear(4 * 3 * 3, 3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(torch.max_pool2d(self.convolution(images), 2))
        return self.output(features.flatten(1))


def tiny_mlp() -> nn.Module:
    """The shipped network of one hidden layer on 6x6 images, whose gradients are written out."""
    return MLP(36, 8, 3)


@pytest.fixture(params=[TinyCNN, tiny_mlp], ids=["cnn", "mlp"])
def model(request: pytest.FixtureRequest) -> Model:
    return Model(request.param)


@pytest.fixture
def mlp() -> Model:
    return Model(tiny_mlp)


@pytest.fixture
def cnn() -> Model:
    return Model(TinyCNN)


def images_of(count: int, group: int, stream: Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy images whose class is a bright row (group 0) or a bright column (group 1)."""
    draw = stream.generator()
    y = torch.randint(0, 3, (count,), generator=draw)
    x = 0.3 * torch.rand(count, 1, 6, 6, generator=draw)
    lines = x[:, 0] if group == 0 else x[:, 0].mT
    lines[torch.arange(count), 2 * y] += 0.7
    return x, y


@pytest.fixture(scope="session")
def build() -> Build:
    """A factory of federations of two groups, rows and columns."""

    def make(sizes: tuple[int, ...] = (9, 12, 7, 12, 5, 10), beta: float = 0.5, threshold: float = 0.6) -> Federation:
        stream = Stream(123)
        groups = [0 if i < 2 else 1 for i in range(len(sizes))]
        clients = [
            images_of(size, g, stream("client", i)) for i, (size, g) in enumerate(zip(sizes, groups, strict=True))
        ]
        holdout = [images_of(4, g, stream("holdout", i)) for i, g in enumerate(groups)]

        def mixed(count: int, name: str) -> Examples:
            halves = [images_of(count // 2, g, stream(name, g)) for g in (0, 1)]
            names = ["rows"] * (count // 2) + ["columns"] * (count // 2)
            return Examples(torch.cat([x for x, _ in halves]), torch.cat([y for _, y in halves]), names)

        return Federation.from_tensors(
            clients,
            groups=["rows" if g == 0 else "columns" for g in groups],
            holdout=holdout,
            test=mixed(40, "test"),
            shadow=mixed(60, "shadow"),
            beta=beta,
            threshold=threshold,
            classes=3,
        )

    return make


@pytest.fixture
def clustered(mlp, build):
    """Two models, chosen by the first two clients and by the others; the federation; an engine.

    The stream is one whose first model answers with every class, and whose losses all differ.
    """
    federation = build()
    models = torch.stack([mlp.init(Stream(3)(k)) for k in range(2)])
    state = State(5, models, torch.tensor([0.5, 0.5], dtype=torch.float64), torch.tensor([0, 0, 1, 1, 1, 1]))
    with Engine(mlp) as engine:
        yield state, federation, engine
