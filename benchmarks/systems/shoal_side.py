"""Shoal: any of the works, through its public interface.

Of "ifca-mir" all rounds are counted, from the first; "parts" in the JSON are their choosing, training and red team.

    python benchmarks/systems/shoal_side.py fedavg-cnn --random-data --precision bf16
"""

import argparse
import struct
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from clock import Clock, tell
from networks import LeNet
from work import CLASSES, LEARNING_RATE, Work, chosen, load, parser

from shoal import (
    IFCA,
    Engine,
    FedAvg,
    Federation,
    LocalSGD,
    Model,
    Preferences,
    Shape,
    Stream,
    Training,
    create_model,
    read_config,
)
from shoal.config.build import build
from shoal.data import GroupedExamples, Shards

_CONFIG = Path(__file__).parents[2] / "experiments" / "ifca-mir" / "fashion-mnist.toml"


def dealt(work: Work, data: Path | None) -> Federation:
    """The work's images, dealt out.

    Made from whole tensors: `Federation.from_tensors` takes two tensors a client, and those of 100,000 clients would be
    most of what the memory work measures.
    """
    x, y = (torch.from_numpy(array) for array in load(work, data))
    nothing = GroupedExamples(x[:0], y[:0], y[:0])
    asked = torch.full((work.clients,), 0.5, dtype=torch.float64)
    return Federation(
        clients=Shards.from_contiguous(x, y, torch.full((work.clients,), work.examples)),
        holdout=Shards.from_contiguous(x[:0], y[:0], torch.zeros(work.clients, dtype=torch.int64)),
        ids=torch.arange(work.clients),
        group=torch.zeros(work.clients, dtype=torch.int64),
        groups=("all",),
        preferences=Preferences(asked, asked),
        test=nothing,
        shadow=nothing,
        classes=CLASSES,
    )


def network(work: Work) -> Model:
    """Shoal's model of the work's network."""
    if work.network == "lenet":
        return Model(LeNet)
    shape = Shape(*work.shape, CLASSES)
    hidden = (work.hidden or 200) if work.network == "mlp" else None
    return create_model({"cnn": "mnist-cnn"}.get(work.network, work.network), shape, hidden=hidden)


def training(work: Work, engine: Engine, data: Path | None) -> Training:
    """FedAvg or IFCA on the work's images, on ``engine``."""
    # A client with one batch a pass takes as many steps as passes, which is how IFCA's authors put it.
    much = {"steps": work.passes} if work.batch is None else {"epochs": work.passes}
    local = LocalSGD(**much, batch_size=work.batch or "all", learning_rate=LEARNING_RATE)
    algorithm = FedAvg() if work.clusters == 1 else IFCA(work.clusters)
    return Training(engine.prepare(dealt(work, data)), algorithm, local, engine, Stream(0))


def with_red_team(work: Work, engine: Engine, images: Path | None) -> Training:
    """The shipped IFCA-MIR run on Fashion-MNIST at the size of the paper's on MNIST.

    Args:
        work: numbers of clients and of their images; shadow and test set keep their proportion to those.
        engine: on what.
        images: a folder of IDX files; None: where Shoal finds Fashion-MNIST.
    """
    shadow, test = _server_images(work)
    source = [] if images is None else ['data.source="idx"', f'data.path="{images.as_posix()}"']
    config = read_config(
        _CONFIG,
        [
            *source,
            f"data.clients={work.clients}",
            f"data.examples_per_client={work.examples}",
            f"data.shadow_examples={shadow}",
            f"data.test_examples={test}",
            f"local.epochs={work.passes}",
            f"local.batch_size={work.batch}",
        ],
    )
    _, simulation = build(config)
    return replace(simulation, federation=engine.prepare(simulation.federation)).on(engine)


def write_random_images(work: Work, folder: Path) -> None:
    """Random images in IDX files, as many as the IFCA-MIR run takes."""
    draw = np.random.default_rng(0)
    shadow, test = _server_images(work)
    for name, count in (("train", work.clients * work.examples + shadow), ("t10k", test)):
        pixels = draw.integers(0, 256, (count, *work.shape[1:]), dtype=np.uint8)
        labels = draw.integers(0, CLASSES, count, dtype=np.uint8)
        labels[:CLASSES] = np.arange(CLASSES)  # so that the set has as many classes as the network
        for kind, array in (("images-idx3", pixels), ("labels-idx1", labels)):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (folder / f"{name}-{kind}-ubyte").write_bytes(header + array.tobytes())


def _server_images(work: Work) -> tuple[int, int]:
    """Images of the shadow set and of the test set: 10,000 and 4,000 at the full size."""
    held = work.clients * work.examples
    return held // 5, max(CLASSES, held * 2 // 25)


def measure(arguments: argparse.Namespace, work: Work, folder: Path) -> None:
    """Play the rounds and print the JSON; ``folder`` may be written to."""
    cuda = arguments.device.startswith("cuda")
    watched = arguments.work == "ifca-mir"
    # The fifth round of the IFCA-MIR run estimates the risk, so none may be left out.
    warm_up = 0 if watched else 1
    clock = Clock(arguments.began, warm_up=warm_up)
    engine = Engine(
        network(work),
        device=arguments.device,
        threads=arguments.threads,
        precision=arguments.precision,
        backend=arguments.backend,
    )
    parts: dict[str, float] = {}
    with engine:
        if watched:
            if arguments.random_data:
                write_random_images(work, folder)
            played = with_red_team(work, engine, folder if arguments.random_data else None)
        else:
            played = training(work, engine, arguments.data)
        start = played.start()
        clock.start()
        for state, report in played.rounds(start, arguments.rounds + warm_up):
            if cuda:
                torch.cuda.synchronize()
            clock.lap()
            if state.round > warm_up:
                of_round = {part: report.seconds[part] for part in ("choose", "train", "red_team")}
                parts = {part: parts.get(part, 0.0) + spent for part, spent in of_round.items()}
    more = {"peak_gpu_mib": torch.cuda.max_memory_allocated() / 2**20} if cuda else {}
    tell(
        "shoal",
        arguments.work,
        work.images,
        clock,
        parts=parts,
        backend=engine.backend,
        precision=arguments.precision,
        threads=arguments.threads,
        torch=torch.__version__,
        **more,
    )


def main() -> None:
    """Measure what the arguments name."""
    options = parser(__doc__ or "", threads=2)
    options.add_argument("--backend", choices=("loop", "vmap"), help="left out: the engine's own rule")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments, chosen(arguments), Path(folder))


if __name__ == "__main__":
    main()
