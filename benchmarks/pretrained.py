"""What a federation on a frozen body of 25 million parameters costs, side by side with the shortest plain loop.

20 clients with 50 images (3 x 32 x 32), a body of 25,009,220 frozen parameters that is made once, a head of 10,010, ten
rounds of IFCA (K = 4), one pass of batches of 10, 200 test images evaluated after the last round, two threads. The
sides, each in a process of its own:

- ``before``: Shoal of another checkout (``--before``), whose network is built with a copy of the body each time;
- ``shoal``: the frozen body is in no row, and computes in each pass;
- ``features``: the body is a fixed map of features, computed once;
- ``plain``: PyTorch alone: features once, then the same choices, steps and averages.

``MiB`` is the most memory that the process had (``VmHWM``), ``seconds`` are from the first tensor to the result, as is
processor time, and ``with imports`` those of the process. Last, the bytes of a deployed round's two messages.

    git worktree add ../before 7317c13f
    python benchmarks/pretrained.py --before ../before [--repeats 3] [--sides shoal features plain]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLIENTS, EXAMPLES, TEST, ROUNDS, CLUSTERS, BATCH, RATE = 20, 50, 200, 10, 4, 10, 0.1


def pretrained() -> tuple[Any, list[tuple[Any, Any]], tuple[Any, Any]]:
    """The body, clients' examples and test examples."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    torch.manual_seed(0)
    body = nn.Sequential(nn.Flatten(), nn.Linear(3072, 6140), nn.ReLU(), nn.Linear(6140, 1000), nn.ReLU())
    body.requires_grad_(False)

    def images(count: int, group: int) -> tuple[Any, Any]:
        y = torch.randint(0, 10, (count,))
        x = 0.2 * torch.rand(count, 3, 32, 32)
        x[torch.arange(count), :, 3 * y, :] += 3.0
        return x, (y + group) % 10

    # Groups have their own labels for the same images, as clusters are for.
    return body, [images(EXAMPLES, i % CLUSTERS) for i in range(CLIENTS)], images(TEST, 0)


def plain() -> float:
    """The clients' training accuracy, with PyTorch alone."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415
    from torch.nn.functional import cross_entropy  # noqa: PLC0415

    torch.set_num_threads(2)
    body, clients, test = pretrained()
    with torch.no_grad():
        features = [(body(x), y) for x, y in clients]
        tested = body(test[0])
    # Two threads would wait for each other longer than a step of a head takes.
    torch.set_num_threads(1)
    heads = [nn.Linear(1000, 10) for _ in range(CLUSTERS)]
    for _ in range(ROUNDS):
        ends: list[list[Any]] = [[] for _ in heads]
        for x, y in features:
            with torch.no_grad():
                best = min(range(CLUSTERS), key=lambda k: float(cross_entropy(heads[k](x), y)))
            own = deepcopy(heads[best])
            optimizer = torch.optim.SGD(own.parameters(), lr=RATE)
            for batch in torch.randperm(len(y)).split(BATCH):
                optimizer.zero_grad()
                cross_entropy(own(x[batch]), y[batch]).backward()
                optimizer.step()
            ends[best].append(list(own.parameters()))
        with torch.no_grad():
            for head, of_head in zip(heads, ends, strict=True):
                for parameter, *others in zip(head.parameters(), *of_head, strict=True):
                    if others:
                        parameter.copy_(torch.stack(others).mean(dim=0))
    with torch.no_grad():
        for head in heads:
            head(tested).argmax(dim=1).eq(test[1]).float().mean()
        chosen = [min(heads, key=lambda head, x=x, y=y: float(cross_entropy(head(x), y))) for x, y in features]
        right = [chosen[i](x).argmax(dim=1).eq(y).float().mean() for i, (x, y) in enumerate(features)]
        return float(torch.stack(right).mean())


def shoal(side: str) -> float:
    """The clients' training accuracy, with Shoal."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    from shoal import IFCA, EngineSettings, Features, Federation, LocalSGD, Model, Run, Simulation  # noqa: PLC0415

    body, clients, test = pretrained()
    head = lambda: nn.Linear(1000, 10)  # noqa: E731
    if side == "before":
        model = Model(lambda: nn.Sequential(*deepcopy(body), head()))
    else:
        model = Model(head if side == "features" else lambda: nn.Sequential(*body, head()))
    features = Features(("own:body",), modules={"own:body": body}) if side == "features" else None
    local = LocalSGD(epochs=1, batch_size=BATCH, learning_rate=RATE)
    federation = Federation.from_tensors(clients, test=test, classes=10)
    del clients, test
    algorithm = IFCA(clusters=CLUSTERS)
    made = Simulation(federation, model, algorithm, local, ROUNDS, evaluate_every=ROUNDS, features=features)
    result = Run(made, engine=EngineSettings(threads=2)).train()
    assert torch.isfinite(result.state.models).all()
    return result.summary.overall["train_accuracy.overall"]


def messages() -> dict[str, int]:
    """The bytes of an offer's models and of a reply, in a deployed round."""
    import torch  # noqa: PLC0415
    from torch import nn  # noqa: PLC0415

    from shoal import Model, Stream  # noqa: PLC0415
    from shoal.engine import ClientUpdate  # noqa: PLC0415
    from shoal_flower.messages import Offer  # noqa: PLC0415
    from shoal_flower.wire_codec import pack_offer, pack_reply  # noqa: PLC0415

    body, *_ = pretrained()
    model = Model(lambda: nn.Sequential(*body, nn.Linear(1000, 10)))
    rows = torch.stack([model.init(Stream(k)) for k in range(CLUSTERS)])
    offer = Offer(1, 0, "", rows, torch.ones(CLUSTERS).double(), frozen=model.frozen_hash)
    sent = {"offer": pack_offer(offer), "reply": pack_reply(ClientUpdate(0, EXAMPLES, rows[0], None))}
    return {
        name: sum(len(array.data) for record in message.array_records.values() for array in record.values())
        for name, message in sent.items()
    }


def measured(side: str) -> dict[str, float]:
    """Of one side, in this process."""
    began = time.perf_counter()
    import torch  # noqa: F401, PLC0415

    if side != "plain":
        import shoal as package  # noqa: PLC0415
        from shoal.runs.run import Run  # noqa: PLC0415

        del package, Run
    imported, used = time.perf_counter(), time.process_time()
    accuracy = plain() if side == "plain" else shoal(side)
    ended, worked = time.perf_counter(), time.process_time() - used
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    found = {"MiB": peak, "seconds": ended - imported, "processor s": worked, "with imports": ended - began}
    return found | {"accuracy": accuracy}


def main() -> None:
    """Measure the sides in turn and print the table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--before", type=Path, help="a checkout of a commit before frozen tensors left the rows")
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--sides", nargs="*", default=["shoal", "features", "plain"])
    options.add_argument("--one", help="measure this side in this process, as JSON")
    given = options.parse_args()
    if given.one:
        print(json.dumps(messages() if given.one == "messages" else measured(given.one)))
        return
    from machine import commit, processor  # noqa: PLC0415 (which another checkout's Shoal may lack)

    def one(side: str) -> dict[str, float]:
        source = given.before if side == "before" else ROOT
        environment = os.environ | {
            "PYTHONPATH": f"{source}/src:{source}/packages/shoal-flower/src",
            "OMP_NUM_THREADS": "2",
        }
        command = [sys.executable, __file__, "--one", side]
        return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment).stdout)

    found: dict[str, list[dict[str, float]]] = {side: [] for side in given.sides}
    for _ in range(given.repeats):
        for side, rows in found.items():
            rows.append(one(side))
    if given.before:
        found["before"] = [one("before")]
    print(f"Commit {commit()}, {processor()[0]}.\n\nside,MiB,seconds,processor s,with imports,accuracy")
    for side, rows in found.items():
        medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        print(f"{side},{medians['MiB']:.0f},{medians['seconds']:.2f},{medians['processor s']:.2f},", end="")
        print(f"{medians['with imports']:.2f},{medians['accuracy']:.3f}")
    print(f"\nBytes of a round's messages: {one('messages')}")


if __name__ == "__main__":
    main()
