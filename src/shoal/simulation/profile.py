"""A profile: some rounds trained, where their time goes, and what the machine's products would allow."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from shoal.algorithms.wrapper import with_bases
from shoal.core.errors import integer
from shoal.core.formats import percent
from shoal.core.machine import cores
from shoal.data.memory_format import gather, to_compute_dtype
from shoal.engine import Engine, LocalSGD, RoundReport, client_trainings, machine_speed
from shoal.engine.backends.selection import backend_reason, resolve_backend
from shoal.engine.round_clock import TRAIN
from shoal.engine.step_products import StepProducts
from shoal.metrics.metric_table import METRICS
from shoal.simulation.engine_settings import EngineSettings
from shoal.simulation.round_metrics import round_metrics
from shoal.simulation.simulation import (
    Simulation,
    SimulationState,
    first_examples,
    initial_state,
    move_to_engine,
    run_rounds,
    with_features,
)

_MIN_SHARE, _MAX_HINTS = 0.2, 2
"""The share of a round from which a part is worth a hint, and how many hints there are."""


@dataclass(frozen=True)
class Profile:
    """Where a round's time goes.

    Args:
        rounds: that were measured, after one that was not.
        seconds: of a round, by part: medians. What is not done in every round counts by its share of the rounds.
        gflop: 10^9 operations of a round's local training in products and convolutions: those of plain steps.
        products: GFLOP/s of these products alone, in the layers' own shapes, on all threads.
        large_products: GFLOP/s of 1024 x 1024 products on all threads.
        backend: that trains.
        reason: why, in a sentence.
        engine: on which it was measured.
        hints: what would take less time, by these figures.
    """

    rounds: int
    seconds: dict[str, float]
    gflop: float
    products: float
    large_products: float
    backend: str
    reason: str
    engine: str
    hints: tuple[str, ...]

    @property
    def total(self) -> float:
        """The seconds of a round."""
        return sum(self.seconds.values())

    @property
    def reached(self) -> float:
        """GFLOP/s of local training."""
        return self.gflop / self.seconds["local_training"] if self.seconds["local_training"] else 0.0

    @property
    def factor(self) -> float | None:
        """The factor that local training could become faster if it were these products alone; None: not known."""
        return self.products / self.reached if self.products and self.reached else None

    def flat(self) -> dict[str, Any]:
        """Keys and values, for programs."""
        return (
            {"rounds": self.rounds, "seconds.total": self.total}
            | {f"seconds.{part}": seconds for part, seconds in self.seconds.items()}
            | {f"share.{part}": seconds / self.total for part, seconds in self.seconds.items()}
            | {"local_training.gflop": self.gflop, "local_training.gflop_per_second": self.reached}
            | {"products.gflop_per_second": self.products, "large_products.gflop_per_second": self.large_products}
            | {"factor": self.factor, "backend": self.backend, "reason": self.reason, "engine": self.engine}
            | {"hints": list(self.hints)}
        )

    def __str__(self) -> str:
        rows = [(_name(part), f"{1000 * spent:,.1f}", percent(spent / self.total)) for part, spent in
                sorted(self.seconds.items(), key=lambda item: -item[1]) if spent > 0]  # fmt: skip
        rows = [("part", "ms a round", "share"), *rows, ("all of a round", f"{1000 * self.total:,.1f}", "")]
        lines = [f"{name:<16} {spent:>12} {share:>8}".rstrip() for name, spent, share in rows]
        about = f"Medians of {self.rounds} round{'s' * (self.rounds > 1)}; files are not written."
        return "\n".join((*lines, "", about, self.engine, self.reason, *self._rates(), *self.hints))

    def _rates(self) -> Sequence[str]:
        if self.factor is None:
            return ["The network's layers have no operations that PyTorch counts."]
        allowed = f"so it is up to {self.factor:.1f} times as fast where nothing else takes time"
        if self.factor < 1:
            allowed = "less: the machine was busy, or training needs fewer (full batches, in the span of their inputs)"
        return [
            f"Local training: {self.gflop:,.2f} GFLOP a round in plain steps, at {self.reached:,.1f} GFLOP/s. Products "
            f"alone reach {self.products:,.1f} in the layers' shapes, {allowed}; products of 1024 x 1024 reach "
            f"{self.large_products:,.1f}."
        ]


def profile(simulation: Simulation, engine: EngineSettings, *, rounds: int = 5) -> Profile:
    """Train some rounds of a simulation, after one for warming up, and measure the machine's products; writes nothing.

    Args:
        simulation: of which a round's time is asked.
        engine: what computes.
        rounds: measured; no more than the simulation has.

    Raises:
        InputError: fewer than one round, or what the simulation's own training raises.

    Example:
        >>> import shoal
        >>> from shoal.simulation.profile import profile
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> simulation = shoal.Simulation(federation, model, shoal.IFCA(clusters=2), local, rounds=9)
        >>> found = profile(simulation, shoal.EngineSettings(threads=1), rounds=2)
        >>> found.rounds, found.backend, found.total > 0
        (2, 'vmap', True)
    """
    integer("rounds", rounds, "such as 5", 1)
    simulation = with_features(simulation)
    decided = engine.decided(
        simulation.setup, simulation.algorithm, first_examples(simulation.federation), simulation.federation.classes
    )
    with decided.engine(simulation.setup.model) as opened:
        ready = move_to_engine(simulation, opened)
        measured: list[tuple[SimulationState, RoundReport]] = []
        measured.extend(islice(run_rounds(ready, opened, initial_state(ready, opened)), rounds + 1))
        warm = measured[1:] or measured
        seconds = _medians(ready, opened, warm)
        # A round's trainings by the clients of the last one, with their defences.
        state, report = warm[-1]
        shards = ready.federation.clients_in_round(state.state.round).take(report.cohort)
        local, trained = ready.setup.first_local(), _examples_trained(ready, shards.sizes)
        operations, rate = 0.0, 0.0
        if len(shards):
            # A batch of the largest client, where others have one at most as large.
            largest = shards.owned(int(shards.sizes.argmax()))
            rows = largest[: local.batch(len(largest))].repeat_interleave(local.multiplicity)
            x = to_compute_dtype(gather(shards.x, rows), opened.dtype, opened.device)
            step = StepProducts.of_step(ready.setup.model, x, shards.y[rows].to(opened.device), opened.dtype)
            operations = step.operations / len(rows)
            if step.calls:
                rate = step.rate(opened.threads, opened.owners_at_once(shards, local)) / 1e9
        large = machine_speed.product_rate(opened.dtype, opened.threads, device=opened.device)
        return Profile(
            rounds=len(warm),
            seconds=seconds,
            gflop=operations * trained / 1e9,
            products=rate,
            large_products=large,
            backend=opened.backend,
            reason=f"Backend '{opened.backend}': {backend_reason(opened.backend, ready.setup.model, local)}.",
            engine=f"On {opened.device}, {opened.threads} thread{'s' * (opened.threads > 1)}, {decided.precision}.",
            hints=_hints(ready, engine, decided, seconds, opened),
        )


_Rounds = Sequence[tuple[SimulationState, RoundReport]]


def _medians(ready: Simulation, engine: Engine, warm: _Rounds) -> dict[str, float]:
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


def _examples_trained(ready: Simulation, sizes: torch.Tensor) -> int:
    """The examples, each as often as it is in a batch, of a round's local trainings of clients of ``sizes`` (n,)."""
    of_client = client_trainings(ready.algorithm, ready.setup.local).rounds
    return sum(_in_batches(replace(ready.setup, local=local).first_local(), sizes) for local in of_client)


def _in_batches(local: LocalSGD, sizes: torch.Tensor) -> int:
    batches, steps = local.batches(sizes), local.steps_each(sizes)
    # A pass has no example twice, so its last batch may be smaller.
    in_a_pass = (sizes + batches - 1) // batches
    return int((steps // in_a_pass * sizes + steps % in_a_pass * batches).sum()) * local.multiplicity


def _hints(
    ready: Simulation, asked: EngineSettings, decided: EngineSettings, seconds: dict[str, float], engine: Engine
) -> tuple[str, ...]:
    """At most two sentences on what would take less time, of the largest part first."""
    total = sum(seconds.values())
    share = {part: spent / total for part, spent in seconds.items()}
    training, of_red_team = sum(share[part] for part in TRAIN), ready.red_team.every
    found = [(share["evaluation"], f"evaluation.every = {2 * ready.evaluate_every} halves what evaluation takes")]
    if engine.device.type == "cpu" and engine.threads < cores():
        found.append((training + share["choose"], f"engine.threads: {engine.threads} of {cores()} cores train"))
    slow, speed = decided.slow_precision(), None
    if decided.precision == "fp32" and training >= _MIN_SHARE:
        speed = machine_speed.bf16_speed(decided.device)
    if slow is not None:
        found.append((training, slow))
    elif speed is not None and speed.faster:
        gain = f"products are {speed.product:.1f} times as fast in bf16, convolutions {speed.convolution:.1f} times"
        found.append((training, f'engine.precision = "auto": here {gain}; it has 8 bits of mantissa'))
    if asked.backend == "loop" and resolve_backend(ready.setup.model, ready.setup.first_local()) == "vmap":
        found.append((training, 'engine.backend = "auto" trains many clients of such a network at a time'))
    if any(getattr(base, "choose_by", None) == "all" for base in with_bases(ready.algorithm)):
        found.append((share["choose"], 'algorithm.choose_by = "batch" scores the models on one batch a client'))
    if of_red_team:
        found.append((share["red_team"], f"red_team.every = {2 * of_red_team} halves what the red team takes"))
    large = sorted((hint for hint in found if hint[0] >= _MIN_SHARE), reverse=True)
    return tuple(f"Hint, {percent(of)} of a round: {text}." for of, text in large[:_MAX_HINTS])


def _name(part: str) -> str:
    key = f"seconds.{part}"
    return METRICS[key].name.removeprefix("time, ") if key in METRICS else part.replace("_", " ")
