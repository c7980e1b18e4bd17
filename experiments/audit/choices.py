"""What an observer of who trained which model learns of clients: their group and strictness.

    python experiments/audit/choices.py experiments/audit/choices.toml docs/results/audit/choices

trains the runs of a sweep in memory with every round recorded, bit for bit as the sweep does. OUT/choices.csv has a row
for each run; OUT/choices.md means and standard deviations over seeds, and what is above chance with its 95 % interval
over seeds (Student's t). Open: the interval covers 0.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from shoal.attacks import ClusterIdentity, PreferenceInference
from shoal.config.build import build
from shoal.config.schema import Config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.metrics import mean_interval
from shoal.simulation.play import move_to_engine
from shoal.sweeps import read_sweep

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from paired_differences import differences, spread, table


def measured(config: Config) -> dict[str, float]:
    """The figures of one run: what each attack says."""
    decided, simulation = build(config)
    with decided.engine.engine(simulation.setup.model) as engine:
        simulation = move_to_engine(replace(simulation, record_updates=1), engine)
        training, federation = simulation.on(engine), simulation.federation
        # One row a client, in the order of ids.
        choices = list[np.ndarray]()
        for _, report in training.rounds(training.start(), simulation.rounds):
            assert report.updates is not None
            chosen = np.full(len(federation), -1)
            chosen[report.updates.clients.numpy()] = report.updates.assignment.numpy()
            choices.append(chosen)
    assignment, group, ids = np.stack(choices), federation.group.numpy(), federation.ids.numpy()
    try:
        guessed = ClusterIdentity().guess(assignment, group, ids, Stream(0)("cluster-identity"))
        strict = PreferenceInference().guess(
            assignment, group, federation.preferences, ids, Stream(0)("preference-inference")
        )
    except InputError as error:
        print(error, file=sys.stderr)
        return {}
    return {
        "group": guessed.accuracy, "strictness": strict.accuracy,
        "strictness.low": strict.low, "strictness.high": strict.high,
    }  # fmt: skip


def above(values: pd.Series) -> list[str]:
    """Mean difference, interval and seeds above 0; "not decided" where the interval covers 0 or there are too few."""
    known = values.dropna()
    if len(known) < 2:
        return ["", "not decided"]
    mean, interval, _ = differences(known)
    low, high = mean_interval(known.to_numpy())
    return [mean, f"{interval}{', not decided' if low <= 0 <= high else ''}"]


def report(rows: pd.DataFrame) -> str:
    """The table, as Markdown."""
    choices = []
    for algorithm, mine in rows.groupby("algorithm", sort=False):
        if mine["strictness"].notna().any():
            inside = int(((mine["strictness.low"] <= 0.5) & (mine["strictness.high"] >= 0.5)).sum())
            choices.append([
                str(algorithm), spread(mine["group"]), spread(mine["strictness"]), *above(mine["strictness"] - 0.5),
                f"{inside} of {len(mine)}",
            ])  # fmt: skip
    return (
        table(
            "From who chose which model: balanced accuracy, chance 0.5",
            ["algorithm", "group", "strictness", "above chance", "95 % interval", "runs with chance in their interval"],
            choices,
        )
        + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, help="the file of a sweep")
    parser.add_argument("out", type=Path, help="where the tables are written")
    arguments = parser.parse_args()
    rows = []
    for run in read_sweep(arguments.sweep).runs:
        place = {"algorithm": ", ".join(map(str, run.settings.values())), "seed": run.seed}
        rows.append(place | measured(run.config))
        print(rows[-1], flush=True)
    found = pd.DataFrame(rows)
    arguments.out.mkdir(parents=True, exist_ok=True)
    write_text(arguments.out / "choices.csv", found.to_csv(index=False))
    write_text(arguments.out / "choices.md", report(found).lstrip())


if __name__ == "__main__":
    main()
