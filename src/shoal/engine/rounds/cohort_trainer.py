"""The local trainings of a round: a cohort trains, and the server aggregates while others are still training."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.shards import Shards
from shoal.engine.backends.loop_backend import parts_of
from shoal.engine.engine import DivergenceError, Engine, gather_params
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.protocols import MaliciousClients, UpdateFilter
from shoal.engine.rounds.aggregation import Aggregator, PartialSum
from shoal.engine.rounds.round_outcome import Aggregate
from shoal.engine.rounds.round_plan import LocalTraining, RoundPlan
from shoal.engine.rounds.round_updates import UpdateCollector
from shoal.engine.state import State, Tensors


@dataclass(frozen=True, eq=False)
class CohortTrainer:
    """Trains the n clients of a round.

    Args:
        engine: computes it.
        shards: the clients' examples of this round, n owners.
        ids: (n,) int64, the clients' ids.
        local_of: local training of a cluster's clients, from the cluster and what a plan says instead of the run's.
        batches: the stream of this round's batches.
        update_filter: applied to every update that the server receives; None: none.
        client_filter: applied by honest clients to every update that they send; None: none.
        malicious_clients: train in their own way; None: nobody does.
        collector: copies what is sent, before the filter; None: nobody does.
    """

    engine: Engine
    shards: Shards
    ids: Tensor
    local_of: Callable[[int, LocalSGD | None], LocalSGD]
    batches: Stream
    update_filter: UpdateFilter | None = None
    client_filter: UpdateFilter | None = None
    malicious_clients: MaliciousClients | None = None
    collector: UpdateCollector | None = None

    def train(self, state: State, plan: RoundPlan, first: int = 0) -> tuple[Aggregate, Tensors]:
        """The outcome of all trainings of a plan, and `State.adversary` after them.

        Args:
            state: before the round.
            plan: for these n clients.
            first: index of the plan's first training in the whole round's plan, which names its random draws.

        Raises:
            DivergenceError: parameters that are not finite; its owner is a position in the cohort.
        """
        weights = [each.weights for each in plan.trainings if each.weights is not None]
        aggregator = Aggregator(state.models, torch.cat(weights, dim=1)) if weights else None
        kept, column = [], 0
        for index, training in enumerate(plan.trainings, start=first):
            stream = self.batches if index == 0 else self.batches("training", index)
            clusters = plan.clusters(index - first)
            kept_back = self._kept_back(state, clusters, training)
            size = None if training.step_rule is None else state.models.shape[1]
            receiver = _Receiver(training, aggregator, column, self.update_filter, self.collector, kept_back, size)
            state = self._train_one(state, clusters, training, stream, receiver)
            kept.append(receiver.kept(len(self.ids)))
            column += 0 if training.weights is None else len(self.ids)
        return Aggregate(state.models if aggregator is None else aggregator.result(), tuple(kept)), state.adversary

    def _train_one(
        self, state: State, clusters: Tensor, training: LocalTraining, stream: Stream, receiver: "_Receiver"
    ) -> State:
        """One local training of everybody, each in its cluster of ``clusters`` (n,); the state with what the malicious
        clients remember.
        """
        malicious = torch.zeros(len(self.ids), dtype=torch.bool)
        if self.malicious_clients is not None and training.weights is not None:
            malicious = torch.isin(self.ids, self.malicious_clients.clients)
        # The shards carry the weights, so that malicious clients are given them too.
        shards = replace(self.shards, weights=training.example_weights)
        for local, some in self._by_local(clusters, training):
            if training.example_weights is not None:
                local.check_example_weights()
            phases = self._phases(training, local, stream)
            self._train_honest(training, shards, phases, some[~malicious[some]], receiver)
            if not bool(malicious[some].any()):
                continue
            randomness = local.randomness(shards, self.ids, stream)
            for position in some[malicious[some]]:
                k, one = int(clusters[position]), position[None]
                state = self._train_malicious(state, k, shards, local, one, randomness, receiver)
        return state

    def _train_honest(
        self,
        training: LocalTraining,
        shards: Shards,
        phases: list[tuple[LocalRandomness, LocalSGD]],
        clients: Tensor,
        receiver: "_Receiver",
    ) -> None:
        (randomness, local), *later = phases

        def finish(owners: Tensor, ends: Tensor) -> _Update:
            some = clients[owners]
            return receiver.received(some, ends, randomness.seeds[some], self.client_filter)

        term = None if training.linear_term is None else training.linear_term.take(clients)
        updates = self.engine.train_into(
            finish,
            training.initial_params,
            training.init_index[clients],
            shards.take(clients),
            randomness.take(clients),
            local,
            term,
            then=[(drawn.take(clients), each) for drawn, each in later],
            rule=training.step_rule,
        )
        try:
            for update in updates:
                receiver.add(update)
        except DivergenceError as diverged:
            raise DivergenceError(int(clients[diverged.owner]), str(diverged)) from diverged

    def _train_malicious(
        self,
        state: State,
        cluster: int,
        shards: Shards,
        local: LocalSGD,
        one: Tensor,
        randomness: LocalRandomness,
        receiver: "_Receiver",
    ) -> State:
        assert self.malicious_clients is not None
        client, own = int(self.ids[one]), randomness.take(one)
        end, adversary = self.malicious_clients.train(state, cluster, client, shards.take(one), own, local, self.engine)
        if not bool(torch.isfinite(end).all()):
            raise DivergenceError(int(one), f"the update of the malicious client {client} is not finite")
        receiver.add(receiver.received(one, end[None], own.seeds))
        return replace(state, adversary=adversary)

    def _phases(
        self, training: LocalTraining, local: LocalSGD, stream: Stream
    ) -> list[tuple[LocalRandomness, LocalSGD]]:
        """The parts of a local training, each with what is random in it; usually one."""
        if not training.phases:
            return [(local.randomness(self.shards, self.ids, stream), local)]
        epochs = sum(phase.epochs for phase in training.phases)
        require(local.epochs == epochs and local.share == 1, f"a local training in phases needs all of {epochs} epochs")
        parts = [replace(local, epochs=phase.epochs, tensors=phase.tensors) for phase in training.phases]
        return [(each.randomness(self.shards, self.ids, stream("phase", i)), each) for i, each in enumerate(parts)]

    def _kept_back(self, state: State, clusters: Tensor, training: LocalTraining) -> "_KeptBack | None":
        """What stands in the place of tensors that are not sent; None where all are."""
        if training.shared is None or training.weights is None:
            return None
        return _KeptBack(training.personal_slices(self.engine.model.layout), state.models, clusters)

    def _by_local(self, clusters: Tensor, training: LocalTraining) -> Iterator[tuple[LocalSGD, Tensor]]:
        """The clients (u,) that train in the same way in their ``clusters`` (n,), in order; usually all of them."""
        trains = training.participants()
        present = clusters[trains].unique().tolist()
        locals_ = [self.local_of(k, training.local) for k in present]
        different = [each for i, each in enumerate(locals_) if each not in locals_[:i]]
        for local in different:
            alike = torch.tensor([k for k, each in zip(present, locals_, strict=True) if each == local])
            yield local, torch.nonzero(torch.isin(clusters, alike) & trains).flatten()


def aggregated(
    state: State, plan: RoundPlan, ends: Tensor, seeds: Tensor, sizes: Tensor, update_filter: UpdateFilter | None
) -> Aggregate:
    """The outcome of a plan whose clients have trained elsewhere and sent their parameters; the server's part.

    Where clients are trained by the loop, it is what `CohortTrainer.train` gives, bit for bit.

    Args:
        state: before the round.
        plan: for these n clients.
        ends: (n, P), the parameters that they sent.
        seeds: (n,) int64, what the server's filter draws by.
        sizes: (n,) int64, examples of each, which decide the order in which they are added up.
        update_filter: applied to every update; None: none.

    Raises:
        InputError: the plan asks for no update of each client, or for several.
    """
    sent = [index for index, each in enumerate(plan.trainings) if each.weights is not None]
    require(len(sent) == 1, f"clients elsewhere send one update each in a round; this plan asks for {len(sent)}")
    training = plan.trainings[sent[0]]
    kept: list[Tensor | None] = [None] * len(plan.trainings)
    assert training.weights is not None
    aggregator = Aggregator(state.models, training.weights)
    receiver = _Receiver(training, aggregator, 0, update_filter, None)
    for some in parts_of(sizes):
        receiver.add(receiver.received(some, ends[some], seeds[some]))
    kept[sent[0]] = receiver.kept(len(sizes))
    return Aggregate(aggregator.result(), tuple(kept))


_Update = tuple[Tensor, PartialSum | None, Tensor | None]
"""Of some clients (u,): themselves, their partial sum, and what is kept of their updates (u, d)."""


@dataclass(frozen=True, eq=False)
class _KeptBack:
    """Tensors that clients do not send, and what the server has in their place.

    Args:
        places: of these tensors in a row.
        models: (K, P).
        assignment: (n,) int64.
    """

    places: list[slice]
    models: Tensor
    assignment: Tensor

    def replaced(self, clients: Tensor, rows: Tensor) -> Tensor:
        """The ``rows`` (u, P) of ``clients`` (u,), with the numbers of their clusters' models in these places."""
        filled, theirs = rows.clone(), self.models[self.assignment[clients]].to(rows)
        for place in self.places:
            filled[:, place] = theirs[:, place]
        return filled

    def restored(self, received: Tensor, rows: Tensor) -> Tensor:
        """``received`` (u, P) with the numbers of ``rows`` (u, P) in these places."""
        filled = received.clone()
        for place in self.places:
            filled[:, place] = rows[:, place]
        return filled


class _Receiver:
    """Receives what clients trained: filters, aggregates and keeps it as a local training says."""

    def __init__(
        self,
        training: LocalTraining,
        aggregator: Aggregator | None,
        column: int,
        update_filter: UpdateFilter | None,
        collector: UpdateCollector | None,
        kept_back: _KeptBack | None = None,
        parameters: int | None = None,
    ) -> None:
        self._kept_back = kept_back
        self._parameters = parameters
        self._training, self._column = training, column
        self._aggregator = None if training.weights is None else aggregator
        # What is not sent passes no filter, and nobody sees it.
        self._filter = None if training.weights is None else update_filter
        self._collector = None if training.weights is None else collector
        self._kept: list[tuple[Tensor, Tensor]] = []

    def received(
        self, clients: Tensor, ends: Tensor, seeds: Tensor, client_filter: UpdateFilter | None = None
    ) -> _Update:
        """What the ``ends`` (u, P) of ``clients`` (u,) come to, who send what ``client_filter`` makes of them.

        It is called on the threads that trained them.
        """
        own, back = ends, self._kept_back
        ends = own if self._parameters is None else own[:, : self._parameters]
        if back is not None:
            ends = back.replaced(clients, ends)
        if client_filter is not None and self._training.weights is not None:
            ends = self._filtered(client_filter, clients, ends, seeds)
        if self._collector is not None:
            self._collector.add(clients + self._column, ends)
        if self._filter is not None:
            ends = self._filtered(self._filter, clients, ends, seeds)
        partial = None if self._aggregator is None else self._aggregator.partial_sum(clients + self._column, ends)
        keep = self._training.keep
        if keep is None:
            return clients, partial, None
        whole, starts = ends if back is None else back.restored(ends, own), self._starts(clients, ends)
        if starts.shape[1] > ends.shape[1]:
            # A malicious client has only what it sends, so the rest of its row stays.
            rest = own if own.shape == starts.shape else starts
            whole = torch.cat([whole, rest[:, ends.shape[1] :]], dim=1)
        return clients, partial, keep(whole - starts).cpu()

    def _starts(self, clients: Tensor, like: Tensor) -> Tensor:
        """(u, P), or (u, R) of a rule: what clients started from."""
        return gather_params(self._training.initial_params, self._training.init_index[clients]).to(like)

    def _filtered(self, each: UpdateFilter, clients: Tensor, ends: Tensor, seeds: Tensor) -> Tensor:
        """What a filter makes of ``ends`` (u, P)."""
        begun, back = self._starts(clients, ends)[:, : ends.shape[1]], self._kept_back
        if back is None:
            return each.filter(begun, ends, seeds)
        # A filter may add noise: not to what it was not given.
        return back.replaced(clients, each.filter(back.replaced(clients, begun), ends, seeds))

    def add(self, update: _Update) -> None:
        """Add what `received` gave; the order of calls decides the last bits of the sums."""
        clients, partial, kept = update
        if self._aggregator is not None and partial is not None:
            self._aggregator.add(partial)
        if kept is not None:
            self._kept.append((clients, kept))

    def kept(self, count: int) -> Tensor | None:
        """What was kept of all ``count`` clients (count, d), 0 of those who did not train; None where nothing was."""
        if not self._kept:
            return None
        everything = self._kept[0][1].new_zeros(count, *self._kept[0][1].shape[1:])
        for clients, kept in self._kept:
            everything[clients] = kept
        return everything
