"""Where the time of a configuration's rounds goes, by part, and which keys would lower it; writes nothing.

    python benchmarks/profile_round.py CONFIG [--rounds 5] [--set KEY=VALUE] [--json]

One round warms up. Of the others each part's median counts. A part that is not due in every round counts by its share
of the rounds. A hint is given where a part takes at least a fifth of a round and a key would lower it.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from shoal.algorithms.wrapper import with_bases
from shoal.config.build import build
from shoal.config.schema import read_config
from shoal.core.errors import InputError, ShoalError, integer
from shoal.core.formats import percent
from shoal.core.processes import cores
from shoal.engine import Engine, LocalSGD, RoundReport, resolve_backend
from shoal.engine.backends.dense_network import dense_network
from shoal.engine.backends.selection import loop_reason, prefers_vmap
from shoal.engine.worker_pool import TRAIN
from shoal.metrics.metric_table import METRICS
from shoal.models import Model
from shoal.models.layers import seeded_dropouts
from shoal.simulation.play import EngineSettings, SimulationState, initial_state, move_to_engine, run_rounds
from shoal.simulation.round_metrics import round_metrics
from shoal.simulation.simulation import Simulation, apply_feature_map

_MIN_SHARE, _MAX_HINTS = 0.2, 2
"""The share of a round from which a part is worth a hint, and how many hints there are."""


def profile(simulation: Simulation, settings: EngineSettings, *, rounds: int = 5) -> dict[str, Any]:
    """Train some rounds, and return their seconds by part and what follows from them, by flat key.

    Raises:
        InputError: fewer than one round, or what the simulation's own training raises.
    """
    integer("rounds", rounds, "such as 5", 1)
    simulation = apply_feature_map(simulation)
    decided = settings.resolve(simulation)
    with decided.engine(simulation.setup.model) as engine:
        ready = move_to_engine(simulation, engine)
        measured = list(islice(run_rounds(ready, engine, initial_state(ready, engine)), rounds + 1))
        warm = measured[1:] or measured
        seconds = _medians(ready, engine, warm)
        reason = backend_reason(engine.backend, ready.setup.model, ready.setup.first_local())
        found: dict[str, Any] = {"rounds": len(warm), "seconds.total": sum(seconds.values())}
        found |= {f"seconds.{part}": spent for part, spent in seconds.items()}
        found |= {f"share.{part}": spent / found["seconds.total"] for part, spent in seconds.items()}
        found |= {"backend": engine.backend, "reason": f"Backend '{engine.backend}': {reason}."}
        about = f"On {engine.device}, {engine.threads} thread{'s' * (engine.threads > 1)}, {decided.precision}."
        return found | {"engine": about, "hints": hints(ready, settings, seconds, engine)}


def text(found: dict[str, Any]) -> str:
    """The table of a profile, its largest part first, and its sentences."""
    total, rounds = found["seconds.total"], found["rounds"]
    parts = {key.removeprefix("share."): found[key] for key in found if key.startswith("share.") and found[key] > 0}
    largest = sorted(parts.items(), key=lambda part: -part[1])
    rows = [(_name(part), f"{1000 * share * total:,.1f}", percent(share)) for part, share in largest]
    rows = [("part", "ms a round", "share"), *rows, ("all of a round", f"{1000 * total:,.1f}", "")]
    lines = [f"{name:<16} {spent:>12} {share:>8}".rstrip() for name, spent, share in rows]
    about = f"Medians of {rounds} round{'s' * (rounds > 1)}; files are not written."
    return "\n".join((*lines, "", about, found["engine"], found["reason"], *found["hints"]))


def _medians(
    ready: Simulation, engine: Engine, warm: Sequence[tuple[SimulationState, RoundReport]]
) -> dict[str, float]:
    """The seconds of a round by part: medians, with the red team and evaluations by how often they are due."""
    rows = [now.by_round[-1] for now, _ in warm]
    parts = [part for part in rows[-1] if part not in ("train", "files")]
    seconds = {part: statistics.median(row.get(part, 0.0) for row in rows) for part in parts}
    (now, report), training = warm[-1], ready.on(engine)

    def due(part: str, every: int, act: Callable[[], object]) -> float:
        """The seconds of what is due in one of ``every`` rounds; ``act`` does it where no round has."""
        times = [row[part] for (now, _), row in zip(warm, rows, strict=True) if now.state.round % every == 0]
        if not times:
            began = time.perf_counter()
            act()
            times = [time.perf_counter() - began]
        return statistics.median(times) / every

    if ready.red_team.every:
        number = -(-now.state.round // ready.red_team.every) * ready.red_team.every
        after = replace(now.state, round=number)
        seconds["red_team"] = due("red_team", ready.red_team.every, lambda: training.with_risks(after))
    if ready.evaluate_every > 1:
        evaluate = lambda: round_metrics(now.state, report, ready.federation, engine, evaluated=True)  # noqa: E731
        seconds["evaluation"] = due("evaluation", ready.evaluate_every, evaluate)
    return seconds


def backend_reason(backend: str, model: Model, local: LocalSGD) -> str:
    """How ``backend`` trains ``model`` by ``local``, and why, in words that follow its name."""
    network, alone = model.structure(), "clients in sequence"
    reason = loop_reason(local, dense=dense_network(model) is not None)
    preferred, rule = prefers_vmap(model.layout, network), "at most 500,000 parameters, all in linear layers"
    if reason is not None:
        return f"{alone}, since vmap {reason}"
    if backend == "vmap":
        return f"many clients at a time, {f'for {rule}' if preferred else 'as it was asked for'}"
    if seeded_dropouts(network):
        return f"{alone}, since vmap cannot train dropout"
    if not preferred:
        return f"{alone}, since vmap is faster only for networks of {rule}"
    return f"{alone}, as it was asked for, or since vmap cannot train this network"


def hints(ready: Simulation, asked: EngineSettings, seconds: dict[str, float], engine: Engine) -> list[str]:
    """At most two sentences on what would take less time, of the largest part first."""
    total = sum(seconds.values())
    share = {part: spent / total for part, spent in seconds.items()}
    training, of_red_team = sum(share[part] for part in TRAIN), ready.red_team.every
    found = [(share["evaluation"], f"evaluation.every = {2 * ready.evaluate_every} halves what evaluation takes")]
    if engine.device.type == "cpu" and engine.threads < cores():
        found.append((training + share["choose"], f"engine.threads: {engine.threads} of {cores()} cores train"))
    if asked.backend == "loop" and resolve_backend(ready.setup.model, ready.setup.first_local()) == "vmap":
        found.append((training, 'engine.backend = "auto" trains many clients of such a network at a time'))
    if any(getattr(base, "choose_by", None) == "all" for base in with_bases(ready.algorithm)):
        found.append((share["choose"], 'algorithm.choose_by = "batch" scores the models on one batch a client'))
    if of_red_team:
        found.append((share["red_team"], f"red_team.every = {2 * of_red_team} halves what the red team takes"))
    large = sorted((hint for hint in found if hint[0] >= _MIN_SHARE), reverse=True)
    return [f"Hint, {percent(of)} of a round: {text}." for of, text in large[:_MAX_HINTS]]


def _name(part: str) -> str:
    key = f"seconds.{part}"
    return METRICS[key].name.removeprefix("time, ") if key in METRICS else part.replace("_", " ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Profile the configuration that the arguments name; the exit codes are those of `shoal`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="measured, after one to warm up")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a key; repeatable")
    parser.add_argument(
        "--data-dir", type=Path, default=os.environ.get("SHOAL_DATA"), help="where to look for data first"
    )
    parser.add_argument("--allow-code", action="store_true", help="import code that the file names (MODULE:NAME)")
    parser.add_argument("--json", action="store_true", help="print one document")
    given = parser.parse_args(arguments)
    try:
        config = read_config(given.config, given.set, allow_code=given.allow_code or None)
        _, simulation = build(config, given.data_dir)
        found = profile(simulation, config.engine, rounds=given.rounds)
    except ShoalError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    print(json.dumps(found, indent=2) if given.json else text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
