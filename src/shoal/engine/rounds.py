"""The rounds of a federation: offer, choose, train, merge; and the sockets that rooms above fill."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from shoal.core.checks import InputError
from shoal.core.randomness import Stream
from shoal.data.federation import Federation, Preferences, Shards
from shoal.engine.engine import Diverged, Engine
from shoal.engine.local import LocalSGD
from shoal.engine.merge import Merge

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


def start(algorithm: Algorithm, engine: Engine, federation: Federation, stream: Stream) -> State:
    """The state before the first round."""
    models = algorithm.init(engine, federation, stream("init"))
    return State(
        round=0,
        models=models,
        risks=torch.full((len(models),), UNKNOWN_RISK, dtype=torch.float64),
        choice=torch.full((len(federation),), -1),
    )


def cohort_of(federation: Federation, participation: float, stream: Stream) -> Tensor:
    """Positions (n,) of a round's clients: a random ``participation`` of all, ordered by id; it may be none.

    Which clients take part depends on their ids, not on their positions.
    """
    count = round(participation * len(federation))
    by_id = torch.argsort(federation.ids)
    if count == len(federation):
        return by_id
    drawn = torch.randperm(len(federation), generator=stream.generator())[:count]
    return by_id[drawn.sort().values]


def play_round(
    state: State,
    federation: Federation,
    algorithm: Algorithm,
    local: LocalSGD,
    engine: Engine,
    stream: Stream,
    participation: float = 1.0,
    sensor: RiskSensor | None = None,
) -> tuple[State, Report]:
    """One round; ``stream`` is the root stream of the run. ``state`` is left as it is.

    Raises:
        InputError: training diverged; the sentence names round, client and learning rate.
    """
    number = state.round + 1
    here = stream("round", number)
    cohort = cohort_of(federation, participation, here("cohort"))
    seconds = dict.fromkeys(("choose", "train", "red_team"), 0.0)

    losses, choice, models = None, torch.empty(0, dtype=torch.int64), state.models
    if len(cohort):
        began = time.perf_counter()
        losses, choice = _choose(state, federation, cohort, algorithm, local, engine, here)
        chosen = time.perf_counter()
        models = _train(state, federation, cohort, choice, algorithm, local, engine, here)
        seconds["choose"], seconds["train"] = chosen - began, time.perf_counter() - chosen

    remembered = state.choice.clone()
    remembered[cohort] = choice
    after = State(number, models, state.risks, remembered)
    sensed = sensor is not None and sensor.every > 0 and number % sensor.every == 0
    if sensed and sensor is not None:
        began = time.perf_counter()
        risks = sensor.risks(after, federation, engine, local, stream("red team", number))
        seconds["red_team"] = time.perf_counter() - began
        after = replace(after, risks=risks)
    return after, Report(cohort, losses, choice, sensed, seconds)


def play(
    state: State,
    federation: Federation,
    algorithm: Algorithm,
    local: LocalSGD,
    engine: Engine,
    stream: Stream,
    *,
    rounds: int,
    participation: float = 1.0,
    sensor: RiskSensor | None = None,
) -> Iterator[tuple[State, Report]]:
    """Play from ``state`` until ``rounds`` rounds are done, handing out each round's state and report."""
    while state.round < rounds:
        state, report = play_round(state, federation, algorithm, local, engine, stream, participation, sensor)
        yield state, report


def final_choice(
    state: State, federation: Federation, algorithm: Algorithm, engine: Engine
) -> tuple[Tensor, Tensor]:
    """What every client, with all its examples, chooses of the final models: losses (N, K) and choices (N,)."""
    losses = engine.losses(state.models, federation.clients)
    return losses, algorithm.choose(losses, state.risks, federation.preferences)


def _choose(
    state: State,
    federation: Federation,
    cohort: Tensor,
    algorithm: Algorithm,
    local: LocalSGD,
    engine: Engine,
    here: Stream,
) -> tuple[Tensor | None, Tensor]:
    preferences = Preferences(federation.preferences.threshold[cohort], federation.preferences.beta[cohort])
    if algorithm.chooses_by is None:
        nothing = torch.zeros(len(cohort), len(state.models), dtype=torch.float64)
        return None, algorithm.choose(nothing, state.risks, preferences)
    shards = federation.clients.take(cohort)
    if algorithm.chooses_by == "batch":
        shards = local.first_batch(shards, federation.ids[cohort], here("batches"))
    losses = engine.losses(state.models, shards)
    unusable = torch.isnan(losses).any(dim=1)
    if bool(unusable.any()):
        raise _diverged(int(federation.ids[cohort[unusable][0]]), state.round + 1, local)
    return losses, algorithm.choose(losses, state.risks, preferences)


def _train(
    state: State,
    federation: Federation,
    cohort: Tensor,
    choice: Tensor,
    algorithm: Algorithm,
    local: LocalSGD,
    engine: Engine,
    here: Stream,
) -> Tensor:
    shards: Shards = federation.clients.take(cohort)
    ids = federation.ids[cohort]
    orders = local.orders(shards, ids, here("batches"))
    merge = Merge(state.models, algorithm.shares(choice, shards.sizes))
    try:
        for owners, ends in engine.train(state.models, choice, shards, orders, local, local.rate(state.round + 1)):
            merge.add(owners, ends)
    except Diverged as diverged:
        raise _diverged(int(ids[diverged.owner]), state.round + 1, local) from diverged
    return merge.models()


def _diverged(client: int, number: int, local: LocalSGD) -> InputError:
    return InputError(
        f"the loss became NaN in round {number} at client {client} with learning rate {local.rate(number):g}; "
        "lower 'local.learning_rate'"
    )
