"""A `peft` model of 30 million parameters, in a federation and in a plain loop: memory and step time.

    python benchmarks/adapters.py [--steps 3] [--repeats 3]

A BERT of 12 layers from a configuration, with random weights, LoRA of rank 8 on queries and values, and its head; 40
clients with ``4 * steps`` texts of 32 words, batches of 4, one round of IFCA with four models; one thread. Memory is
what a process needs beyond what it has before the model is made (Linux), in multiples of one model and 44 adapters;
the time of a step is processor time of one client's training, engine and loop in turn.
"""

import argparse
import statistics
import subprocess
import sys
import time
from copy import deepcopy
from operator import attrgetter
from pathlib import Path

import peft
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

import shoal
from shoal.models import cross_entropy

CLIENTS, CLUSTERS, BATCH, LENGTH, WORDS, RATE = 40, 4, 4, 32, 2000, 0.1


def bert() -> nn.Module:
    """30 million parameters."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=WORDS, hidden_size=448, num_hidden_layers=12, num_attention_heads=7, intermediate_size=1792,
        max_position_embeddings=64, num_labels=4, attention_probs_dropout_prob=0.0, hidden_dropout_prob=0.0,
    )  # fmt: skip
    return BertForSequenceClassification(config)


def adapted() -> shoal.Model:
    """Shoal's model; the body is made once."""
    body = bert()
    weights = {id(tensor): tensor for tensor in body.parameters()}
    return shoal.Model(lambda: plain(deepcopy(body, weights.copy())), outputs=attrgetter("logits"), inputs=masked)


def masked(words: Tensor) -> dict[str, Tensor]:
    """What BERT takes."""
    return {"input_ids": words, "attention_mask": words != 0}


def federation(steps: int) -> shoal.Federation:
    """Clients with random texts."""
    draw = torch.Generator().manual_seed(0)
    clients = []
    for _ in range(CLIENTS):
        x = torch.randint(1, WORDS, (BATCH * steps, LENGTH), generator=draw)
        clients.append((x, torch.randint(0, 4, (len(x),), generator=draw)))
    return shoal.Federation.from_tensors(clients, test=clients[0], classes=4)


def needed(steps: int, which: str) -> tuple[int, int]:
    """The bytes that a round needs beyond those before the model is made, and those of one model and 44 adapters."""
    of = federation(steps)
    before = _resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # The peak begins anew.
    if which == "shoal":
        model = adapted()
        local = shoal.LocalSGD(epochs=1, batch_size=BATCH, learning_rate=RATE)
        with shoal.Engine(model, threads=1) as engine:
            training = shoal.Training(engine.prepare(of), shoal.IFCA(clusters=CLUSTERS), local, engine, shoal.Stream(0))
            training.round(training.start())
        frozen = sum(tensor.numel() for tensor in model.frozen.values())
        return _resident("VmHWM") - before, 4 * (frozen + (CLUSTERS + CLIENTS) * model.layout.size)
    network = plain(bert()).train()
    x, y = of.clients.x, of.clients.y
    train(network, x[: BATCH * steps], y[: BATCH * steps])
    trained = sum(p.numel() for p in network.parameters() if p.requires_grad)
    whole = sum(p.numel() for p in network.parameters())
    return _resident("VmHWM") - before, 4 * (whole - trained + (CLUSTERS + CLIENTS) * trained)


def _resident(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))


def plain(body: nn.Module) -> nn.Module:
    """LoRA of a body's queries and values, and its head."""
    config = peft.LoraConfig(r=8, lora_alpha=8, target_modules=["query", "value"], modules_to_save=["classifier"])
    return peft.get_peft_model(body, config)  # pyright: ignore[reportArgumentType]


def train(network: nn.Module, x: Tensor, y: Tensor) -> None:
    """The plain loop."""
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], RATE)
    for words, labels in zip(x.split(BATCH), y.split(BATCH), strict=True):
        optimizer.zero_grad()
        cross_entropy(network(**masked(words)).logits, labels).mean().backward()
        optimizer.step()


def step_times(steps: int, repeats: int) -> tuple[float, float]:
    """Medians of the seconds of processor time of a step: of the engine, and of a plain loop."""
    of, network = federation(steps), plain(bert()).train()
    model = adapted()
    local = shoal.LocalSGD(epochs=1, batch_size=BATCH, learning_rate=RATE)
    ours, theirs = list[float](), list[float]()
    one = of.take(torch.tensor([0]))
    with shoal.Engine(model, threads=1) as engine:
        training = shoal.Training(engine.prepare(one), shoal.FedAvg(), local, engine, shoal.Stream(0))
        state, _ = training.round(training.start())
        train(network, of.clients.x[:BATCH], of.clients.y[:BATCH])
        for _ in range(repeats):
            begin = time.process_time()
            state, _ = training.round(state)
            middle = time.process_time()
            train(network, of.clients.x[: BATCH * steps], of.clients.y[: BATCH * steps])
            ours.append((middle - begin) / steps)
            theirs.append((time.process_time() - middle) / steps)
    return statistics.median(ours), statistics.median(theirs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", choices=["shoal", "plain"], help="measure the memory of one, in this process")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.memory is not None:
        print(*needed(args.steps, args.memory))
        return
    print("| | MiB | of one model and 44 adapters | s a step |\n|---|---:|---:|---:|")
    times = step_times(args.steps, args.repeats)
    for which, seconds in zip(("shoal", "plain"), times, strict=True):
        command = [sys.executable, __file__, "--memory", which, "--steps", str(args.steps)]
        out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used, unit = map(int, out.split()[-2:])
        print(f"| {which} | {used / 2**20:.0f} | {used / unit:.2f} | {seconds:.3f} |")


if __name__ == "__main__":
    main()
