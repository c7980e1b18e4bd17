"""What a round on Flower costs beside training: seconds, and bytes of each client, for K models of the MNIST CNN.

    python benchmarks/flower_overhead.py --clusters 2 5

A SuperLink and K SuperNodes on loopback; each client takes one step of ten images, so that a round's seconds are what
is not training. Bytes are those of the records of a client's two messages, as Flower stores and sends them.
"""

import argparse
import csv
import datetime
import itertools
import sys
import tempfile
from pathlib import Path

import torch
from flwr.app import RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.core.randomness import Stream
from shoal.engine import ClientUpdate
from shoal_flower.messages import Offer
from shoal_flower.wire_codec import pack_offer, pack_reply

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "experiments" / "federation"))

from processes import APP, Loopback, Programs, wait_until

CONFIG = """
[data]
source = "fashion-mnist"
clients = {clusters}
examples_per_client = 10
shadow_examples = 0
test_examples = 100
[model]
name = "mnist-cnn"
[algorithm]
name = "ifca"
clusters = {clusters}
rounds = {rounds}
[local]
steps = 1
batch_size = 10
[red_team]
every = 0
attack = "gap"
"""


def stored(records: RecordDict) -> int:
    """The bytes of these records, in the objects that Flower makes of them."""
    return sum(len(each.deflate()) for each in get_all_nested_objects(records).values())


def traffic(path: Path, clusters: int) -> tuple[int, int]:
    """The bytes that a client is sent in a round, and that it sends."""
    decided, simulation = build(read_config(path))
    model = simulation.setup.model.init(Stream(0))
    offer = Offer(1, 0, decided.toml(), torch.stack([model] * clusters), torch.zeros(clusters))
    return stored(pack_offer(offer)), stored(pack_reply(ClientUpdate(0, 10, model)))


def seconds_of_rounds(path: Path, folder: Path, rounds: int, nodes: int) -> list[float]:
    """The seconds of each round but the first, in which clients load their data."""
    out = folder / "run"
    with Programs(folder) as programs:
        loopback = Loopback(programs)
        loopback.start_server()
        for i in range(nodes):
            loopback.start_node(f"node-{i}", {"partition-id": i, "state-dir": folder / f"state-{i}"})
        loopback.run(APP, {"config": path, "out": out, "min-nodes": nodes})
        wait_until((out / "summary.json").exists, 600, "no end of the run")
    lines = [line for line in (out / "run.log").read_text().splitlines() if " INFO round " in line]
    moments = [datetime.datetime.fromisoformat(line.partition(",")[0]) for line in lines]
    assert len(moments) == rounds
    whole = [float(row["round"]) for row in csv.DictReader((out / "rounds.csv").read_text().splitlines())]
    assert whole[-1] == rounds
    return [(after - before).total_seconds() for before, after in itertools.pairwise(moments)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", type=int, nargs="+", default=[2, 5])
    parser.add_argument("--rounds", type=int, default=8)
    given = parser.parse_args()
    for clusters in given.clusters:
        with tempfile.TemporaryDirectory(prefix="shoal-overhead-") as name:
            path = Path(name) / "run.toml"
            path.write_text(CONFIG.format(clusters=clusters, rounds=given.rounds))
            down, up = traffic(path, clusters)
            seconds = torch.tensor(seconds_of_rounds(path, Path(name), given.rounds, clusters))
        print(
            f"K = {clusters}: {float(seconds.median()):.1f} s a round (from {float(seconds.min()):.0f} to "
            f"{float(seconds.max()):.0f}), {down:,} bytes to a client, {up:,} bytes from it"
        )


if __name__ == "__main__":
    main()
