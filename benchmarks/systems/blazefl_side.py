"""BlazeFL: FedAvg by its own server handler and its pool of threads or of processes.

Runs in an environment that has blazefl[contrib,reproducibility]==3.0.0, which needs Python 3.14, for its threads the
free-threaded build (3.14t).

    python benchmarks/systems/blazefl_side.py blazefl-cnn --pool threads --threads 2
"""

import argparse
import resource
import sys
import tempfile
import time
from enum import StrEnum
from pathlib import Path

import torch
from blazefl.contrib import (
    FedAvgBaseServerHandler,
    FedAvgPartitionType,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from clock import Clock, family, peak_mib, tell
from networks import build
from torch import Generator, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from work import LEARNING_RATE, Work, chosen, load, parser


class Network(StrEnum):
    """What BlazeFL calls the name of a model; there is one."""

    OF_THE_WORK = "of the work"


class Networks:
    """Implements BlazeFL's `ModelSelector`."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def select_model(self, model_name: Network) -> nn.Module:
        """A network of the work, whose parameters BlazeFL overwrites."""
        del model_name
        return build(self.work)


class Partitions:
    """Implements BlazeFL's `PartitionedDataset`: tensors in memory, a client's batches in a new order each pass."""

    def __init__(self, work: Work, data: Path | None) -> None:
        x, y = (torch.from_numpy(array) for array in load(work, data))
        pieces = zip(x.split(work.examples), y.split(work.examples), strict=True)
        self.of_client: list[Dataset] = [TensorDataset(*piece) for piece in pieces]

    def get_dataset(self, type_: FedAvgPartitionType, cid: int | None) -> Dataset:
        """A client's examples."""
        del type_
        assert cid is not None
        return self.of_client[cid]

    def set_dataset(self, type_: FedAvgPartitionType, cid: int | None, dataset: Dataset) -> None:
        """Training leaves them as they are."""

    def get_dataloader(
        self, type_: FedAvgPartitionType, cid: int | None, batch_size: int | None, generator: Generator | None
    ) -> DataLoader:
        """A client's batches."""
        of_client = self.get_dataset(type_, cid)
        return DataLoader(of_client, batch_size=batch_size, shuffle=True, generator=generator)


def trainer_of(
    arguments: argparse.Namespace, common: dict[str, object], folder: Path
) -> FedAvgThreadPoolClientTrainer | FedAvgProcessPoolClientTrainer:
    """The pool that was asked for."""
    if arguments.pool == "processes":
        return FedAvgProcessPoolClientTrainer(**common, state_dir=folder)
    return FedAvgThreadPoolClientTrainer(**common)


def main() -> None:
    """Train for the rounds asked for, and print the JSON; memory is that of all processes at their peaks."""
    options = parser(__doc__ or "", threads=2)
    options.add_argument("--pool", choices=("threads", "processes"), default="threads")
    arguments = options.parse_args()
    work = chosen(arguments)
    torch.set_num_threads(1)  # The clients are what runs at the same time.
    # Those of a pool of processes end with the round, and are then its own.
    clock = Clock(arguments.began, cpu=lambda: time.process_time() + children_seconds())
    images, networks = Partitions(work, arguments.data), Networks(work)
    clients = list(range(work.clients))
    rounds = arguments.rounds + 1
    with tempfile.TemporaryDirectory() as folder:
        server = FedAvgBaseServerHandler(
            networks, Network.OF_THE_WORK, images, rounds, work.clients, 1.0, arguments.device, work.batch, 0
        )
        common: dict[str, object] = {
            "model_selector": networks, "model_name": Network.OF_THE_WORK, "dataset": images,
            "device": arguments.device, "num_clients": work.clients, "epochs": work.passes, "batch_size": work.batch,
            "lr": LEARNING_RATE, "seed": 0, "num_parallels": arguments.threads,
        }  # fmt: skip
        trainer = trainer_of(arguments, common, Path(folder))
        clock.start()
        while not server.is_stopped():
            trainer.local_process(server.downlink_package(), clients)
            for update in trainer.uplink_package():
                server.load(update)
            clock.lap()
    peak = sum(peak_mib(process) for process in family())
    free_threaded = not getattr(sys, "_is_gil_enabled", lambda: True)()
    tell(
        "blazefl", arguments.work, work.images, clock, peak, pool=arguments.pool, parallel=arguments.threads,
        free_threaded=free_threaded, torch=torch.__version__,
    )  # fmt: skip


def children_seconds() -> float:
    """CPU seconds, user and system, of the processes of this one that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
