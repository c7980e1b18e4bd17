"""What the sensor and the coordinator cost beside the training that they watch.

    python experiments/control/cost.py OUT --runs 5 --set algorithm.rounds=20

The federation is that of response.toml. Its rounds alone are measured, without evaluations and without the attack at
the end, so that the share is the largest. Each setting is run once before the next repetition begins, and medians are
taken. Processor time is that of all threads of the process (`time.process_time`), which does not count waiting for
others on a shared machine; wall time does. Written: OUT/cost.csv (a row a run) and OUT/cost.md.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import pandas as pd

sys.path.insert(0, str(Path(__file__).parent))

from made_by import made_by

from shoal.config.build import build, load_data
from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.data import ClientDataset, Federation, LabelledDataset
from shoal.engine import Engine, LocalSGD, RiskEstimate, RiskEstimator, State, SteeringRule
from shoal.simulation.play import initial_state, move_to_engine

BASE = Path(__file__).with_name("response.toml")
GOAL = 0.15
"""The most that sensor and coordinator may take of a run."""


def settings_of(config: Config) -> dict[str, Config]:
    """What is compared, by its name in the table."""
    require(config.coordinator is not None, "'coordinator' must be given; got none")
    assert config.coordinator is not None
    alone = replace(config, coordinator=None)
    unwatched = replace(alone, red_team=replace(config.red_team, every=0))
    augmentation = config.coordinator.augmentation
    # A limit that nobody can keep: the knob is on from the first estimate to the last.
    steered = replace(
        config,
        coordinator=replace(config.coordinator, pooling=None, relief={}, cost={}),
        privacy=replace(config.privacy, thresholds=(0.5, 0.5)),
    )
    return {
        "no red team": unwatched,
        "sensor": alone,
        "sensor and coordinator, limits of 1: knobs at 0": config,
        "no red team, augmentation fixed at full strength": replace(
            unwatched, defenses=replace(config.defenses, augmentation=augmentation)
        ),
        "sensor and coordinator, augmentation on": steered,
    }


Inner = TypeVar("Inner")


@dataclass(eq=False)
class Timed(Generic[Inner]):
    """Something whose calls are timed; ``spent`` is their processor time in seconds."""

    inner: Inner
    spent: float = 0.0

    @contextmanager
    def timing(self) -> Iterator[None]:
        began = time.process_time()
        yield
        self.spent += time.process_time() - began


class TimedSensor(Timed[RiskEstimator]):
    @property
    def every(self) -> int:
        return self.inner.every

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        with self.timing():
            return self.inner.estimate(state, federation, engine, local, stream)


class TimedCoordinator(Timed[SteeringRule]):
    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        with self.timing():
            return self.inner.start(state, federation, engine, stream)

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        with self.timing():
            return self.inner.update(state, federation, engine, stream)


def measured(config: Config, examples: LabelledDataset | ClientDataset) -> dict[str, float]:
    """Wall and processor seconds of the rounds of one run, and the processor seconds of sensor and coordinator."""
    config, simulation = build(config, dataset=examples)
    with config.engine.engine(simulation.setup.model) as engine:
        ready = move_to_engine(simulation, engine)
        training, state = ready.on(engine), initial_state(ready, engine).state
        sensor = TimedSensor(ready.red_team)
        coordinator = None if ready.coordinator is None else TimedCoordinator(ready.coordinator)
        timed = replace(training, risk_estimator=sensor, coordinator=coordinator)
        wall, processor = time.perf_counter(), time.process_time()
        for _ in timed.rounds(state, ready.rounds):
            pass
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
    parts = {"sensor": sensor.spent, "coordinator": 0.0 if coordinator is None else coordinator.spent}
    return {"wall": wall, "processor": processor, **parts, "share": sum(parts.values()) / processor}


def medians(rows: pd.DataFrame) -> pd.DataFrame:
    """A line a setting, in order: the median of each figure over its runs, and how much more processor time than the
    first setting's it took.
    """
    found = rows.groupby("setting", sort=False)[["wall", "processor", "sensor", "coordinator", "share"]].median()
    return found.assign(more=found["processor"] / found["processor"].iloc[0] - 1).reset_index()


def table(lines: pd.DataFrame) -> str:
    """The medians as Markdown."""
    heads = [
        "run", "wall (s)", "processor (s)", "against the first", "of it sensor (s)", "of it coordinator (s)",
        "share of both",
    ]  # fmt: skip
    parts = [f"| {' | '.join(heads)} |", f"|---|{'---:|' * (len(heads) - 1)}"]
    for each in lines.itertuples():
        figures = f"{each.wall:.2f} | {each.processor:.2f} | {each.more:+.1%} | {each.sensor:.3f}"
        parts.append(f"| {each.setting} | {figures} | {each.coordinator:.3f} | {each.share:.1%} |")
    return "\n".join(parts) + "\n"


def cost(out: Path, runs: int, changes: Sequence[str], command: str, base: Path = BASE) -> str:
    """Measure every setting ``runs`` times in turn; the page that is written."""
    config = read_config(base, changes)
    examples, rows = load_data(config.data), []
    for number in range(runs):
        for name, each in settings_of(config).items():
            rows.append({"setting": name, "run": number, **measured(each, examples)})
            print(f"run {number}, {name}: {rows[-1]['processor']:.2f} s", flush=True)
    found = pd.DataFrame(rows)
    lines = medians(found)
    most = lines["share"].max()
    held = "held" if most <= GOAL else "missed"
    text = "\n".join([
        "# What sensor and coordinator cost\n",
        f"Sensor and coordinator take at most {most:.1%} of the processor time of the rounds; the goal of {GOAL:.0%} "
        f"is {held}. What a knob itself costs in training is the difference between the first run and the fourth.\n",
        table(lines),
        f"Medians of {runs} runs in turn, of the {config.algorithm.rounds} rounds alone, an estimate every "
        f"{config.red_team.every}; processor time is that of all threads. {made_by(command)}; seed "
        f"{config.seed}, {config.engine.threads} threads. The machine did other work at the same time, so wall times "
        "mean little.",
    ])  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "cost.csv", found.to_csv(index=False, float_format="%.6g"))
    write_text(out / "cost.md", text + "\n")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    changes = "".join(f" --set {each}" for each in given.changes)
    command = f"python experiments/control/cost.py {given.out} --runs {given.runs}{changes}"
    try:
        print(cost(given.out, given.runs, given.changes, command))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
