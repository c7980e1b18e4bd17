"""What FedEM's and FedRC's clients would get by their mixtures, beside the one component that is deployed.

    python experiments/algorithms/mixture.py experiments/algorithms/fedem.toml

trains the runs of a sweep by FedEM or FedRC once more, bit for bit as the sweep does, and prints for each setting the
accuracies of both on the test examples of the clients' groups: mean and standard deviation over seeds.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import torch

from shoal import Engine
from shoal.algorithms import FedEM, FedRC
from shoal.algorithms.clusters.fedem import mixture_outputs
from shoal.config.build import build
from shoal.config.schema import Config
from shoal.sweeps import read_sweep


def accuracies(config: Config) -> tuple[float, float]:
    """The mean over clients of the accuracy of the deployed component, and of the mixture by the client's weights."""
    _, simulation = build(config)
    with Engine(simulation.setup.model, threads=1) as engine:
        training = simulation.on(engine)
        state = training.start()
        for after, _ in training.rounds(state, simulation.rounds):
            state = after
        test, group = simulation.federation.test, simulation.federation.group
        outputs = torch.stack([engine.outputs(model, test.x) for model in state.models])
        deployed, _ = training.deployed_models(state)
    one, mixed = [], []
    for i, k in enumerate(deployed.model.tolist()):
        mine = test.group == group[i]
        found = mixture_outputs(outputs[:, mine], state.clients["fedem.weights"][i])
        for predicted, right in ((outputs[k, mine], one), (found, mixed)):
            right.append(float((predicted.argmax(dim=1) == test.y[mine]).float().mean()))
    return sum(one) / len(one), sum(mixed) / len(mixed)


def table(settings: Iterable[tuple[str, Config]]) -> str:
    """A line of Markdown for each setting that is a mixture, from all runs, in order."""
    found = defaultdict[str, list[tuple[float, float]]](list)
    for setting, config in settings:
        if isinstance(config.algorithm.value, FedEM | FedRC):
            found[setting].append(accuracies(config))
    lines = ["| setting | component | mixture |", "|---|---:|---:|"]
    for setting, each in found.items():
        values = torch.tensor(each)
        spread = values.std(dim=0) if len(each) > 1 else torch.zeros(2)
        cells = [f"{mean:.3f} +- {sd:.3f}" for mean, sd in zip(values.mean(dim=0), spread, strict=True)]
        lines.append(f"| {setting} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the file of a sweep")
    runs = read_sweep(parser.parse_args().sweep).runs
    print(table((", ".join(map(str, run.settings.values())), run.config) for run in runs))


if __name__ == "__main__":
    main()
