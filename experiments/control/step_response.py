"""How the coordinator answers a step and a disturbance.

    python experiments/control/step_response.py OUT --seeds 0 1 2
    python experiments/control/step_response.py OUT --set red_team.every=10

Step: all clients tolerate any risk; after round 20 a fifth more clients join, who tolerate 0.52; 60 more rounds.
Disturbance: all clients tolerate 0.55; after round 40 a third of the larger cluster leaves; 60 more rounds.

The federation is that of response.toml. Models, risks, directives and what the coordinator has learned are carried over
the event. Written: OUT/step.csv and OUT/disturbance.csv (a row a seed, estimate and cluster), a figure of each as SVG,
and OUT/step.md, the tables of settling. "Larger" is the cluster with more members at the event.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pandas as pd
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from made_by import made_by
from response_figure import CLUSTERS, response_figure
from settling import BAND, FINAL, conclusion, settling, table

from shoal.config.build import build
from shoal.config.schema import Config, read_config
from shoal.core.atomic_files import write_bytes, write_text
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation, Preferences
from shoal.engine import State
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import Simulation, WarmStart

BASE = Path(__file__).with_name("response.toml")
AFTERWARDS = 60
"""Rounds after the event."""

COLUMNS = (
    "round", "clients", "risk", "over_limit", "directive.augmentation", "directive.pooling", "heldout_accuracy",
    "limit_unmet",
)  # fmt: skip


@dataclass(frozen=True)
class Event:
    """What happens to a federation.

    Args:
        kind: strict clients join, or clients of the larger cluster leave.
        round: after which it happens.
        share: of the clients who join (those who were there are 1), or of the larger cluster who leave.
        limit: what the strictest clients tolerate, who are those who join, or all.
        title: in words.
    """

    kind: Literal["step", "disturbance"]
    round: int
    share: float
    limit: float
    title: str

    def before(self, federation: Federation) -> Federation:
        """The federation until the event; ``federation`` is the whole one, whose clients tolerate anything."""
        if self.kind == "disturbance":
            return with_limit(federation, torch.arange(len(federation)), self.limit)
        return federation.take(torch.nonzero(~self.joining(federation)).flatten())

    def after(self, federation: Federation, state: State, stream: Stream) -> Federation:
        """The federation from the event on."""
        if self.kind == "step":
            return with_limit(federation, torch.nonzero(self.joining(federation)).flatten(), self.limit)
        larger = torch.nonzero(state.assignment == larger_cluster(state.assignment)).flatten()
        drawn = torch.randperm(len(larger), generator=stream("leave").generator())
        leaving = larger[drawn[: round(self.share * len(larger))]]
        staying = torch.isin(torch.arange(len(federation)), leaving, invert=True)
        return self.before(federation).take(torch.nonzero(staying).flatten())

    def joining(self, federation: Federation) -> Tensor:
        """(N,) bool, the last clients of each group."""
        found = torch.zeros(len(federation), dtype=torch.bool)
        for g in federation.group.unique():
            mine = torch.nonzero(federation.group == g).flatten()
            found[mine[round(len(mine) / (1 + self.share)) :]] = True
        return found


EVENTS = (
    Event("step", 20, 0.25, 0.52, "strict clients join"),
    Event("disturbance", 40, 1 / 3, 0.55, "a third of the larger cluster leaves"),
)


def with_limit(federation: Federation, clients: Tensor, limit: float) -> Federation:
    """The federation whose clients at these positions tolerate ``limit``."""
    threshold = federation.preferences.threshold.clone()
    threshold[clients] = limit
    return replace(federation, preferences=Preferences(threshold, federation.preferences.beta))


def larger_cluster(assignment: Tensor) -> int:
    """The cluster with the most clients, the first of equals."""
    return int(torch.bincount(assignment[assignment >= 0]).argmax())


def run(config: Config, event: Event) -> pd.DataFrame:
    """The rows of rounds.csv at estimates, with `COLUMNS`, the cluster's name at the event and the seed."""
    config, simulation = build(config)
    whole, rows = simulation.federation, []
    with config.engine.engine(simulation.setup.model) as engine:

        def trained(part: Simulation) -> State:
            ready = move_to_engine(part, engine)
            now = initial_state(ready, engine)
            for after, _ in run_rounds(ready, engine, now):
                now = after
            rows.extend(now.rows)
            return now.state

        state = trained(replace(simulation, federation=event.before(whole), rounds=event.round))
        changed = event.after(whole, state, Stream(config.seed, ("event",)))
        larger = larger_cluster(state.assignment)
        trained(replace(simulation, federation=changed, rounds=AFTERWARDS, start=WarmStart(state)))
    found = pd.DataFrame(rows)
    found = found[found["round"] % config.red_team.every == 0]
    names = found["cluster"].map(lambda k: CLUSTERS[0 if k == larger else 1])
    return found[[*COLUMNS]].assign(cluster=names, seed=config.seed)


def page(lines: dict[str, pd.DataFrame], command: str, seeds: Sequence[int]) -> str:
    """The tables of settling of all events, and how they were made."""
    parts = [
        "# The coordinator's answer to a step and to a disturbance\n",
        f"A strength has settled once it stays within {BAND:g} of its mean over the last {FINAL} estimates. It is "
        "reversed where it fell and rises, or rose and falls.\n",
    ]
    for event in EVENTS:
        parts += [
            f"## {event.kind.capitalize()}: {event.title} after round {event.round}\n",
            conclusion(lines[event.kind]) + "\n",
            f"![{event.title}]({event.kind}.svg)\n",
            table(lines[event.kind]),
        ]
    parts.append(f"{made_by(command)}; seeds {', '.join(map(str, seeds))}.")
    return "\n".join(parts) + "\n"


def respond(out: Path, seeds: Sequence[int], changes: Sequence[str], command: str, base: Path = BASE) -> str:
    """Run all events with all seeds; the page that is written."""
    configs = [read_config(base, [*changes, f"seed={seed}"]) for seed in seeds]
    out.mkdir(parents=True, exist_ok=True)
    lines = {}
    for event in EVENTS:
        runs = []
        for config in configs:
            runs.append(run(config, event))
            print(f"{event.kind}, seed {config.seed}: done", flush=True)
        rows = pd.concat(runs)
        lines[event.kind] = settling(rows, event.round)
        write_text(out / f"{event.kind}.csv", rows.to_csv(index=False, float_format="%.6g"))
        figure = response_figure(rows, event.round, event.title, event.limit)
        write_bytes(out / f"{event.kind}.svg", figure)
    text = page(lines, command, seeds)
    write_text(out / "step.md", text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--set", dest="changes", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    seeds = " ".join(map(str, given.seeds))
    changes = "".join(f" --set {each}" for each in given.changes)
    command = f"python experiments/control/step_response.py {given.out} --seeds {seeds}{changes}"
    try:
        print(respond(given.out, given.seeds, given.changes, command))
    except InputError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
