"""The rounds of a federation: offer, choose, train, merge; and the sockets that rooms above fill."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from shoal.core.checks import InputError, require
from shoal.core.randomness import Stream
from shoal.data.federation import Federation, Preferences
from shoal.engine.engine import DivergenceError, Engine
from shoal.engine.local import LocalSGD
from shoal.engine.merge import Merge

LOG = logging.getLogger(__name__)

UNKNOWN_RISK = 0.5
"""Every model's risk before the first red-team round: a coin's balanced accuracy. One value for all models,
or risk alone would decide while losses still look the same."""


@dataclass(frozen=True, eq=False)
class State:
    """Where a federation stands after a round.

    Args:
        round: rounds done.
        models: (K, P) float32.
        risks: (K,) float64, the last red-team estimate of each model.
        choice: (N,) int64, each client's last choice; -1 for a client that has not yet taken part.
    """

    round: int
    models: Tensor
    risks: Tensor
    choice: Tensor


@dataclass(frozen=True, eq=False)
class Report:
    """What happened in a round.

    Args:
        cohort: (n,) int64, positions of the clients that took part.
        losses: (n, K) float64, the losses they chose by; None where the algorithm needs none.
        choice: (n,) int64, the models they chose.
        sensed: whether the risks were estimated anew at the end of this round.
        seconds: wall time of "choose", "train" and "red_team".
    """

    cohort: Tensor
    losses: Tensor | None
    choice: Tensor
    sensed: bool
    seconds: dict[str, float]


class Algorithm(Protocol):
    """A federated algorithm is a value with three pure methods; the engine plays the rounds."""

    @property
    def clusters(self) -> int:
        """K, the number of models."""
        ...

    @property
    def chooses_by(self) -> Literal["all", "batch"] | None:
        """On which examples clients score the models: "all" their own, the first "batch", or None: no scores."""
        ...

    def init(self, engine: Engine, federation: Federation, stream: Stream) -> Tensor:
        """The initial models (K, P)."""
        ...

    def choose(self, losses: Tensor, risks: Tensor, preferences: Preferences) -> Tensor:
        """Client side. From losses (n, K), risks (K,) and the n clients' preferences to their choices (n,)."""
        ...

    def shares(self, choice: Tensor, sizes: Tensor) -> Tensor:
        """Server side. From choices (n,) and numbers of examples (n,) to the shares W (K, n)."""
        ...


class RiskSensor(Protocol):
    """Estimates how exposed each model's members are; what it does changes nothing but the risks."""

    @property
    def every(self) -> int:
        """Rounds between estimates; 0: never."""
        ...

    def risks(self, state: State, federation: Federation, engine: Engine, local: LocalSGD, stream: Stream) -> Tensor:
        """(K,) float64 in [0, 1], the membership-inference accuracy on each model of ``state``."""
        ...


@dataclass(frozen=True, eq=False)
class Training:
    """A federation being trained: whose data, by which algorithm, on which engine, from which random streams.

    Args:
        federation: the clients.
        algorithm: which models they start from, and how models move.
        local: what a client does in a round.
        engine: computes it; its data should have been prepared (`Engine.prepare`).
        stream: the root of the run's random streams.
        participation: share of the clients that take part in a round, in [0, 1].
        sensor: who estimates risks; None: nobody.
    """

    federation: Federation
    algorithm: Algorithm
    local: LocalSGD
    engine: Engine
    stream: Stream
    participation: float = 1.0
    sensor: RiskSensor | None = None

    def __post_init__(self) -> None:
        require(
            0 <= self.participation <= 1, f"'algorithm.participation' must be in [0, 1]; got {self.participation:g}"
        )

    def start(self) -> State:
        """The state before the first round."""
        models = self.algorithm.init(self.engine, self.federation, self.stream("init"))
        return State(
            round=0,
            models=models,
            risks=torch.full((len(models),), UNKNOWN_RISK, dtype=torch.float64),
            choice=torch.full((len(self.federation),), -1),
        )

    def rounds(self, state: State, upto: int) -> Iterator[tuple[State, Report]]:
        """Play from ``state`` until ``upto`` rounds are done, handing out each round's state and report."""
        while state.round < upto:
            state, report = self.round(state)
            yield state, report

    def round(self, state: State) -> tuple[State, Report]:
        """One round; ``state`` is left as it is.

        Raises:
            InputError: training diverged; the sentence names round, client and learning rate.
        """
        number = state.round + 1
        cohort = self.cohort(number)
        seconds = {"choose": 0.0, "train": 0.0, "red_team": 0.0}

        losses, choice, models = None, torch.empty(0, dtype=torch.int64), state.models
        if len(cohort):
            began = time.perf_counter()
            losses, choice = self._choose(state, cohort)
            chosen = time.perf_counter()
            models = self._train(state, cohort, choice)
            seconds["choose"], seconds["train"] = chosen - began, time.perf_counter() - chosen

        remembered = state.choice.clone()
        remembered[cohort] = choice
        after = State(number, models, state.risks, remembered)
        sensed = self.sensor is not None and self.sensor.every > 0 and number % self.sensor.every == 0
        if sensed and self.sensor is not None:
            began = time.perf_counter()
            watching = self.stream("red team", number)
            try:
                risks = self.sensor.risks(after, self.federation, self.engine, self.local, watching)
                after = replace(after, risks=risks)
            except DivergenceError:
                LOG.warning("round %d: a shadow model's loss became NaN; risks stay what they were", number)
            seconds["red_team"] = time.perf_counter() - began
        return after, Report(cohort, losses, choice, sensed, seconds)

    def cohort(self, number: int) -> Tensor:
        """Positions (n,) of a round's clients, ordered by id; perhaps none.

        Which clients take part depends on their ids, not on their positions.
        """
        by_id = torch.argsort(self.federation.ids)
        count = round(self.participation * len(by_id))
        if count == len(by_id):
            return by_id
        drawn = torch.randperm(len(by_id), generator=self.stream("round", number, "cohort").generator())[:count]
        return by_id[drawn.sort().values]

    def final_choice(self, state: State) -> tuple[Tensor, Tensor]:
        """What every client, with all its examples, chooses of the models: losses (N, K) and choices (N,)."""
        losses = self.engine.losses(state.models, self.federation.clients)
        self._check(losses, torch.arange(len(losses)), state.round)
        return losses, self.algorithm.choose(losses, state.risks, self.federation.preferences)

    def _choose(self, state: State, cohort: Tensor) -> tuple[Tensor | None, Tensor]:
        given = self.federation.preferences
        preferences = Preferences(given.threshold[cohort], given.beta[cohort])
        if self.algorithm.chooses_by is None:
            nothing = torch.zeros(len(cohort), len(state.models), dtype=torch.float64)
            return None, self.algorithm.choose(nothing, state.risks, preferences)
        shards = self.federation.clients.take(cohort)
        if self.algorithm.chooses_by == "batch":
            shards = self.local.first_batch(shards, self.federation.ids[cohort], self._batches(state))
        losses = self.engine.losses(state.models, shards)
        self._check(losses, cohort, state.round + 1)
        return losses, self.algorithm.choose(losses, state.risks, preferences)

    def _train(self, state: State, cohort: Tensor, choice: Tensor) -> Tensor:
        shards = self.federation.clients.take(cohort)
        orders = self.local.orders(shards, self.federation.ids[cohort], self._batches(state))
        merge = Merge(state.models, self.algorithm.shares(choice, shards.sizes))
        local = self.local.at(state.round + 1)
        try:
            for moves in self.engine.train_into(merge.part, state.models, choice, shards, orders, local):
                merge.add(moves)
        except DivergenceError as diverged:
            raise self._diverged(state.round + 1, cohort[diverged.owner]) from diverged
        return merge.models()

    def _check(self, losses: Tensor, clients: Tensor, number: int) -> None:
        unusable = ~torch.isfinite(losses).all(dim=1)
        if bool(unusable.any()):
            raise self._diverged(number, clients[unusable][0])

    def _batches(self, state: State) -> Stream:
        return self.stream("round", state.round + 1, "batches")

    def _diverged(self, number: int, position: Tensor) -> InputError:
        return InputError(
            f"the loss became NaN in round {number} at client {int(self.federation.ids[position])} with learning rate "
            f"{self.local.at(number).learning_rate:g}; lower 'local.learning_rate'"
        )
