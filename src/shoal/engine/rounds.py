"""The rounds of a federation: offer, choose, train, merge."""

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.data.federation import Federation, Preferences
from shoal.engine.aggregation import Aggregator, PartialSum
from shoal.engine.engine import DivergenceError, Engine
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.protocols import Algorithm, MaliciousClient, RiskEstimator, RoundReport, State, UpdateFilter

LOG = logging.getLogger(__name__)

UNKNOWN_RISK = 0.5
"""Every model's risk before the first red-team round: a coin's balanced accuracy. One value for all models,
or risk alone would decide while losses still look the same."""


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
        screen: what the server does to updates before it merges them; None: nothing.
        malicious_client: the client that trains in its own way; None: nobody.
    """

    federation: Federation
    algorithm: Algorithm
    local: LocalSGD
    engine: Engine
    stream: Stream
    participation: float = 1.0
    risk_estimator: RiskEstimator | None = None
    update_filter: UpdateFilter | None = None
    malicious_client: MaliciousClient | None = None

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
            assignment=torch.full((len(self.federation),), -1),
            memory=None
            if self.malicious_client is None
            else self.malicious_client.start(self.stream("malicious_client")),
        )

    def rounds(self, state: State, upto: int) -> Iterator[tuple[State, RoundReport]]:
        """Play from ``state`` until ``upto`` rounds are done, handing out each round's state and report."""
        while state.round < upto:
            state, report = self.round(state)
            yield state, report

    def round(self, state: State) -> tuple[State, RoundReport]:
        """One round; ``state`` is left as it is.

        Raises:
            InputError: training diverged; the sentence names round, client and learning rate.
        """
        number = state.round + 1
        cohort = self.cohort(number)
        seconds = {"choose": 0.0, "train": 0.0, "red_team": 0.0}

        losses, assignment, models = None, torch.empty(0, dtype=torch.int64), state.models
        memory = state.memory
        if len(cohort):
            began = time.perf_counter()
            losses, assignment = self._choose(state, cohort)
            chosen = time.perf_counter()
            models, memory = self._train(state, cohort, assignment)
            seconds["choose"], seconds["train"] = chosen - began, time.perf_counter() - chosen

        remembered = state.assignment.clone()
        remembered[cohort] = assignment
        after = State(number, models, state.risks, remembered, memory)
        sensed = (
            self.risk_estimator is not None
            and self.risk_estimator.every > 0
            and number % self.risk_estimator.every == 0
        )
        if sensed and self.risk_estimator is not None:
            began = time.perf_counter()
            watching = self.stream("red team", number)
            try:
                risks = self.risk_estimator.risks(after, self.federation, self.engine, self.local, watching)
                after = replace(after, risks=risks)
            except DivergenceError:
                LOG.warning("round %d: a shadow model's loss became NaN; risks stay what they were", number)
            seconds["red_team"] = time.perf_counter() - began
        return after, RoundReport(cohort, losses, assignment, sensed, seconds)

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

    def client_updates(self, before: State, report: RoundReport, client: int) -> Iterator[tuple[int, float, Tensor]]:
        """What the client of an id sent in a round, computed once more: its model, its share of it and its end (P,);
        nothing where it took no part.

        Args:
            before: the state before the round.
            report: of the round.
            client: its id.
        """
        number, ids = before.round + 1, self.federation.ids[report.cohort]
        shards = self.federation.clients_in_round(number).take(report.cohort)
        shares = self.algorithm.shares(report.assignment, shards.sizes)
        for position in torch.nonzero(ids == client).flatten():
            one, k = position[None], int(report.assignment[position])
            theirs, local = shards.take(one), self.local.at(number)
            randomness = self.local.randomness(theirs, ids[one], self._batches(before))
            if self.malicious_client is not None and self.malicious_client.client == client:
                ends = self.malicious_client.train(before, k, theirs, randomness, local, self.engine)[0][None]
            else:
                ((_, ends),) = self.engine.train(before.models, report.assignment[one], theirs, randomness, local)
            starts = before.models[k][None].to(ends)
            kept = ends if self.update_filter is None else self.update_filter.filter(starts, ends)
            yield k, float(shares[k, position]), kept[0].cpu()

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
        shards = self.federation.clients_in_round(state.round + 1).take(cohort)
        if self.algorithm.chooses_by == "batch":
            shards = self.local.first_batch(shards, self.federation.ids[cohort], self._batches(state))
        losses = self.engine.losses(state.models, shards)
        self._check(losses, cohort, state.round + 1)
        return losses, self.algorithm.choose(losses, state.risks, preferences)

    def _train(self, state: State, cohort: Tensor, assignment: Tensor) -> tuple[Tensor, Tensor | None]:
        """The moved models, and what the malicious_client remembers."""
        shards = self.federation.clients_in_round(state.round + 1).take(cohort)
        randomness = self.local.randomness(shards, self.federation.ids[cohort], self._batches(state))
        merge = Aggregator(state.models, self.algorithm.shares(assignment, shards.sizes))
        local = self.local.at(state.round + 1)
        inside = torch.zeros(len(cohort), dtype=torch.bool)
        if self.malicious_client is not None:
            inside = self.federation.ids[cohort] == self.malicious_client.client
        honest = torch.nonzero(~inside).flatten()

        def received(owners: Tensor, ends: Tensor) -> PartialSum:
            clients = honest[owners]
            return self._received(merge, state.models[assignment[clients]], clients, ends)

        try:
            theirs, drawn = shards.take(honest), LocalRandomness(randomness.orders[honest], randomness.seeds[honest])
            for moves in self.engine.train_into(received, state.models, assignment[honest], theirs, drawn, local):
                merge.add(moves)
        except DivergenceError as diverged:
            raise self._diverged(state.round + 1, cohort[honest[diverged.owner]]) from diverged
        memory = state.memory
        for client in torch.nonzero(inside).flatten():
            assert self.malicious_client is not None
            k, one = int(assignment[client]), client[None]
            own = LocalRandomness(randomness.orders[one], randomness.seeds[one])
            end, memory = self.malicious_client.train(state, k, shards.take(one), own, local, self.engine)
            if not bool(torch.isfinite(end).all()):
                raise self._diverged(state.round + 1, cohort[client])
            merge.add(self._received(merge, state.models[k][None], one, end[None]))
        return merge.result(), memory

    def _received(self, merge: Aggregator, starts: Tensor, clients: Tensor, ends: Tensor) -> PartialSum:
        """What the server adds up of the ends (u, P) of ``clients`` (u,), positions in the cohort."""
        kept = ends if self.update_filter is None else self.update_filter.filter(starts.to(ends), ends)
        return merge.partial_sum(clients, kept)

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
