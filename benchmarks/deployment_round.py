"""What a round costs the server of a deployment: memory and processor time, with nodes that are functions.

Each row is a run of two rounds of IFCA (K = 2) in a process of its own, with Flower's own grid and a SuperLink in the
same process (`experiments/federation/in_process.py`), so that nothing of networks, of training or of the SuperLink's
database is measured. All clients of a cluster send the same model, whose objects exist once: what each of them costs is
the server's. Memory is the most of the process's own (`RssAnon`, looked at every 10 ms) above what it had before the
first round; seconds are processor time, user and system, of the second round.

    python benchmarks/deployment_round.py --clients 50 500 --parameters 5000000 [--source OTHER_CHECKOUT]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from machine import commit, processor

ROOT = Path(__file__).resolve().parents[1]
_OUTPUTS, _INPUTS = 10, 64

CONFIG = """
[data]
source = "digits"
clients = 2
examples_per_client = 10
shadow_examples = 0
test_examples = 50
[model]
name = "mlp"
hidden = {hidden}
[algorithm]
name = "ifca"
clusters = 2
rounds = 2
[evaluation]
every = 2
[red_team]
every = 0
attack = "gap"
"""


def measured(clients: int, hidden: int, folder: Path) -> dict[str, float]:
    """Of one run."""
    import torch  # noqa: PLC0415
    from flwr.app import RecordDict  # noqa: PLC0415
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects  # noqa: PLC0415
    from in_process import InProcessSuperLink  # noqa: PLC0415
    from million_clients import OwnMemory  # noqa: PLC0415

    from shoal.engine import ClientUpdate  # noqa: PLC0415
    from shoal_flower.flower_config import RunSettings  # noqa: PLC0415
    from shoal_flower.server.exchange import Exchange  # noqa: PLC0415
    from shoal_flower.server.server_app import serve  # noqa: PLC0415
    from shoal_flower.wire_codec import pack_identity, pack_reply, unpack_offer  # noqa: PLC0415

    torch.set_num_threads(1)
    replies: dict[int, dict[str, bytes]] = {}
    memory, began = OwnMemory(), list[tuple[float, float, float]]()

    def node(i: int) -> Callable[[str, Callable[[], RecordDict]], RecordDict | dict[str, bytes]]:
        def answer(kind: str, content: Callable[[], RecordDict]) -> RecordDict | dict[str, bytes]:
            if kind.endswith("identify"):
                if not began:
                    began.append((time.process_time(), time.perf_counter(), memory.since()))
                return pack_identity(f"client-{i}", None)
            if not replies:
                models = unpack_offer(content()).models
                for cluster in (0, 1):
                    records = pack_reply(ClientUpdate(cluster, 10, models[cluster] * 0.999))
                    replies[cluster] = {key: each.deflate() for key, each in get_all_nested_objects(records).items()}
            return dict(replies[i % 2])

        return answer

    nodes = {100 + i: node(i) for i in range(clients)}
    link = InProcessSuperLink(nodes, {100 + i: f"{i}".encode() for i in range(clients)})
    (folder / "run.toml").write_text(CONFIG.format(hidden=hidden))
    out = folder / "run"
    settings = {"config": str(folder / "run.toml"), "out": str(out), "min-nodes": clients}
    serve(Exchange(link.grid()), RunSettings.read(settings))
    ((processor_time, wall_time, before),) = began
    files = {path.name: path.stat().st_size / 2**20 for path in out.iterdir() if path.is_file()}
    return {
        "MiB": memory.since() - before,
        "processor seconds a round": (time.process_time() - processor_time) / 2,
        "seconds a round": (time.perf_counter() - wall_time) / 2,
        **{f"MiB of {name}": files[name] for name in ("events.csv", "nodes.json", "run.log")},
    }


def main() -> None:
    """Measure and print, a row a number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[50, 500])
    parser.add_argument("--parameters", type=int, default=5_000_000)
    parser.add_argument("--source", type=Path, default=ROOT, help="a checkout whose server is measured")
    parser.add_argument("--folder", type=Path, help="of the run, on a disk; default: the system's temporary folder")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    hidden = given.parameters // (_INPUTS + 1 + _OUTPUTS)
    for clients in given.clients:
        if given.child:
            with tempfile.TemporaryDirectory(dir=given.folder) as name:
                print(json.dumps(measured(clients, hidden, Path(name))))
            return
        paths = [
            given.source / "src",
            given.source / "packages/shoal-flower/src",
            ROOT / "experiments" / "federation",
            ROOT / "benchmarks",
            ROOT,
        ]
        own = ["--child", "--clients", str(clients), "--parameters", str(given.parameters)]
        own += ["--folder", str(given.folder)] if given.folder else []
        done = subprocess.run(
            [sys.executable, __file__, *own],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
        numbers = ", ".join(f"{name} {value:,.1f}" for name, value in json.loads(done.stdout.splitlines()[-1]).items())
        print(f"{clients} clients of {given.parameters:,} parameters: {numbers}", flush=True)
    print(f"{processor()[0]}, commit {commit()}, server of {given.source}")


if __name__ == "__main__":
    main()
