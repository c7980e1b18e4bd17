"""The local training runs of a round, whose results are aggregated while other clients still train."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.shards import Shards
from shoal.engine.backends.loop_backend import parts_of
from shoal.engine.engine import DivergenceError, Engine, gather_params
from shoal.engine.local_sgd import LocalRandomness, LocalSGD
from shoal.engine.protocols import MaliciousClients, MaliciousTraining, UpdateFilter
from shoal.engine.rounds.round_plan import Aggregate, LocalTraining, RoundPlan
from shoal.engine.state import State, Tensors
from shoal.engine.worker_pool import RoundClock


@dataclass(frozen=True, eq=False)
class CohortTrainer:
    """The trainer of the n clients of a round.

    Args:
        shards: the clients' examples in this round, n owners.
        local_of: a function that returns a cluster's local training, given the cluster and the plan's settings
            (``None``: the run's settings).
        batches: the random stream of this round's batches.
        update_filter: the server's filter of every received update; ``None`` applies no filter.
        client_filter: the honest clients' filter of every sent update; ``None`` applies no filter.
        malicious_clients: the clients that replace local training; ``None`` means that all clients are honest.
        record: whether the outcome contains `Aggregate.sent`.
        clock: the clock that measures the round's parts.
    """

    engine: Engine
    shards: Shards
    ids: Tensor
    local_of: Callable[[int, LocalSGD | None], LocalSGD]
    batches: Stream
    update_filter: UpdateFilter | None = None
    client_filter: UpdateFilter | None = None
    malicious_clients: MaliciousClients | None = None
    record: bool = False
    clock: RoundClock = field(default_factory=RoundClock)

    def train(self, state: State, plan: RoundPlan, first: int = 0) -> tuple[Aggregate, Tensors]:
        """Return the outcome of all training runs of a plan, and the new `State.adversary`.

        ``first`` is the index of the first training run in the round's complete plan; it selects the random stream.

        Raises:
            DivergenceError: parameters are not finite; `DivergenceError.owner` is a position in the cohort.
        """
        weights = [training.weights for training in plan.trainings if training.weights is not None]
        aggregator = Aggregator(state.models, torch.cat(weights, dim=1)) if weights else None
        kept, sent, column = [], [], 0
        for index, training in enumerate(plan.trainings, start=first):
            stream = self.batches if index == 0 else self.batches("training", index)
            clusters = plan.clusters(index - first)
            if training.weights is None or aggregator is None:
                receiver = _Receiver(training, clock=self.clock)
            else:
                personal = training.personal_slices(self.engine.model.layout)
                hidden = _LocalTensors(personal, state.models, clusters)
                receiver = _Receiver(
                    training, aggregator, column, self.update_filter, hidden, self.record, clock=self.clock
                )
                column += len(self.ids)
            state = self._train_one(state, clusters, training, stream, receiver)
            kept.append(_gathered(receiver.kept, len(self.ids)))
            sent.append(_gathered(receiver.sent, len(self.ids)))
        models = state.models if aggregator is None else aggregator.result()
        return Aggregate(models, tuple(kept), tuple(sent) if self.record else ()), state.adversary

    def _train_one(
        self, state: State, clusters: Tensor, training: LocalTraining, stream: Stream, receiver: "_Receiver"
    ) -> State:
        """Train all clients in their ``clusters`` (n,); return the state with the new `State.adversary`."""
        is_malicious = torch.zeros(len(self.ids), dtype=torch.bool)
        if self.malicious_clients is not None and training.weights is not None:
            is_malicious = torch.isin(self.ids, self.malicious_clients.clients)
        # The shards contain the weights, so malicious clients receive them too.
        shards = replace(self.shards, weights=training.example_weights)
        for local, clients in self._by_local(clusters, training):
            if training.example_weights is not None:
                local.check_example_weights()
            honest, malicious_ones = clients[~is_malicious[clients]], clients[is_malicious[clients]]
            self._train_honest(training, shards, self._phases(training, local, stream), honest, receiver)
            if self.malicious_clients is None or not len(malicious_ones):
                continue
            randomness = local.randomness(shards, self.ids, stream)
            for one in malicious_ones.split(1):
                client, drawn = int(self.ids[one]), randomness.take(one)
                request = MaliciousTraining(
                    state, int(clusters[one]), client, shards.take(one), drawn, local, self.engine
                )
                with self.clock.part("local_training"):
                    end, adversary = self.malicious_clients.train(request)
                if not bool(torch.isfinite(end).all()):
                    raise DivergenceError(int(one), f"malicious client {client} sent an update that is not finite")
                receiver.add(receiver.received(one, end[None], drawn.seeds))
                state = replace(state, adversary=adversary)
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
            positions = clients[owners]
            return receiver.received(positions, ends, randomness.seeds[positions], self.client_filter)

        updates = self.engine.train_into(
            finish,
            training.initial_params,
            training.init_index[clients],
            shards.take(clients),
            randomness.take(clients),
            local,
            None if training.linear_term is None else training.linear_term.take(clients),
            then=[(drawn.take(clients), phase) for drawn, phase in later],
            rule=training.step_rule,
            clock=self.clock,
        )
        try:
            for update in updates:
                receiver.add(update)
        except DivergenceError as diverged:
            raise DivergenceError(int(clients[diverged.owner]), str(diverged)) from diverged

    def _phases(
        self, training: LocalTraining, local: LocalSGD, stream: Stream
    ) -> list[tuple[LocalRandomness, LocalSGD]]:
        """Return the phases of a local training, usually one, each with its randomness."""
        if not training.phases:
            return [(local.randomness(self.shards, self.ids, stream), local)]
        epochs = sum(phase.epochs for phase in training.phases)
        require(
            local.epochs == epochs and local.share == 1,
            f"the algorithm's phases need local.epochs = {epochs}, with all steps; set local.epochs, and remove "
            "defences that skip steps",
        )
        parts = [replace(local, epochs=phase.epochs, tensors=phase.tensors) for phase in training.phases]
        return [(part.randomness(self.shards, self.ids, stream("phase", i)), part) for i, part in enumerate(parts)]

    def _by_local(self, clusters: Tensor, training: LocalTraining) -> Iterator[tuple[LocalSGD, Tensor]]:
        """Yield the distinct local training settings, usually one, each with its participants (u,) in order."""
        participates = training.participants()
        present = clusters[participates].unique().tolist()
        locals_ = [self.local_of(k, training.local) for k in present]
        for i, local in enumerate(locals_):
            if local not in locals_[:i]:
                same = torch.tensor([k for k, other in zip(present, locals_, strict=True) if other == local])
                yield local, torch.nonzero(torch.isin(clusters, same) & participates).flatten()


class Rows(Protocol):
    """The parameters that n clients sent, in memory or in a file."""

    def __getitem__(self, positions: Tensor, /) -> Tensor:
        """Return the rows (u, P) float32 at ``positions`` (u,)."""
        ...


def aggregated(
    state: State, plan: RoundPlan, ends: Tensor | Rows, seeds: Tensor, sizes: Tensor, update_filter: UpdateFilter | None
) -> Aggregate:
    """Aggregate the parameters that clients trained on other machines.

    The result is bit-identical to that of `CohortTrainer.train` with the loop backend.

    Args:
        ends: the parameters that the clients sent, (n, P); the function reads a few rows at a time.
        seeds: the seeds of the server's filter, (n,) int64.
        sizes: the number of examples per client, which decides the order of summation, (n,) int64.
        update_filter: the server's filter of every update; ``None`` applies no filter.

    Raises:
        InputError: the plan does not request exactly one update per client.
    """
    sent = [index for index, training in enumerate(plan.trainings) if training.weights is not None]
    require(
        len(sent) == 1,
        f"deployed clients send one update per round (the algorithm requests {len(sent)}); choose another algorithm",
    )
    training = plan.trainings[sent[0]]
    assert training.weights is not None
    aggregator = Aggregator(state.models, training.weights)
    receiver = _Receiver(training, aggregator, update_filter=update_filter)
    for clients in parts_of(sizes):
        receiver.add(receiver.received(clients, ends[clients], seeds[clients]))
    kept: list[Tensor | None] = [None] * len(plan.trainings)
    kept[sent[0]] = _gathered(receiver.kept, len(sizes))
    return Aggregate(aggregator.result(), tuple(kept))


PartialSum = tuple[Tensor, Tensor, Tensor]
"""The indices of k models, the weighted sums (k, P) of clients' parameters, and the sums of weights (k, 1)."""

_Rows = list[tuple[Tensor, Tensor]]
"""Parts, each with clients (u,) and one row per client (u, d)."""

_Update = tuple[Tensor, PartialSum | None, Tensor | None, Tensor | None]
"""Clients (u,), the partial sum of their updates, the kept values (u, d) and the sent parameters (u, P)."""


class Aggregator:
    """A running aggregation of n clients' parameters into K models.

    The result is ``models_k + sum_i W[k, i] * (end_i - models_k)``. Threads compute partial sums (`partial_sum`) in
    parallel. Float64 addition in a fixed order (`add`) makes the result reproducible.

    Source: McMahan et al. 2017 (K = 1); Ghosh et al. 2020, arXiv:2006.04088, Algorithm 1.

    Args:
        models: the models before aggregation, (K, P).
        weights: the aggregation weights W, (K, n); rows sum to at most 1. A row of zeros leaves its model unchanged.

    Example:
        >>> import torch
        >>> from shoal.engine import Aggregator
        >>> aggregator = Aggregator(torch.tensor([[0.0]]), torch.tensor([[0.5, 0.5]]))
        >>> aggregator.add(aggregator.partial_sum(torch.tensor([0, 1]), torch.tensor([[1.0], [3.0]])))
        >>> aggregator.result()
        tensor([[2.]])
    """

    def __init__(self, models: Tensor, weights: Tensor) -> None:
        self.parameters = models.shape[1]
        self._models = models
        self._weights = weights.double()
        self._ends = torch.zeros(models.shape, dtype=torch.float64)
        self._added = torch.zeros(len(models), 1, dtype=torch.float64)

    def partial_sum(self, clients: Tensor, ends: Tensor) -> PartialSum:
        """Return each model's weighted sum of the parameters ``ends`` (u, P) of ``clients`` (u,)."""
        weights = self._weights[:, clients]
        moved = torch.nonzero(weights.any(dim=1)).flatten()
        return moved, (weights[moved].to(ends) @ ends).cpu(), weights[moved].sum(dim=1, keepdim=True)

    def add(self, partial: PartialSum) -> None:
        """Add a partial sum; the order of calls decides the last bits of the result."""
        moved, ends, weights = partial
        for k, end, weight in zip(moved.tolist(), ends, weights, strict=True):
            self._ends[k].add_(end)
            self._added[k].add_(weight)

    def result(self) -> Tensor:
        """Return a new tensor (K, P) of the aggregated models."""
        moved = torch.empty(self._models.shape)
        # Row by row saves memory, because sums are in float64.
        for row, model, added, end in zip(moved, self._models, self._added, self._ends, strict=True):
            row.copy_((1 - added) * model.double() + end)
        return moved


def averaging_weights(assignment: Tensor, weights: Tensor, clusters: int) -> Tensor:
    """Return the aggregation weights that average each cluster's clients in proportion to ``weights``.

    Args:
        assignment: each client's cluster, (n,) int64.
        weights: each client's weight, at least 0, such as 1 or its number of examples, (n,).
        clusters: the number of clusters K.

    Returns:
        The weights, (K, n) float64; each row sums to 1, or to 0 for a cluster without clients.

    Example:
        >>> import torch
        >>> from shoal.engine import averaging_weights
        >>> averaging_weights(torch.tensor([0, 0, 1]), torch.tensor([1.0, 3.0, 1.0]), 3)
        tensor([[0.2500, 0.7500, 0.0000],
                [0.0000, 0.0000, 1.0000],
                [0.0000, 0.0000, 0.0000]], dtype=torch.float64)
    """
    members = torch.nn.functional.one_hot(assignment, clusters).T.double() * weights.double()
    total = members.sum(dim=1, keepdim=True)
    return torch.where(total > 0, members / total.clamp(min=1e-300), 0.0)


@dataclass(frozen=True, eq=False)
class _LocalTensors:
    """The personal tensors of clients, which the server replaces by the values of its own models.

    Args:
        slices: the slices of a row that hold personal tensors; empty if all tensors are shared.
        models: the server's models, (K, P).
        clusters: the cluster of each client, (n,) int64.
    """

    slices: list[slice]
    models: Tensor
    clusters: Tensor

    def hide(self, clients: Tensor, rows: Tensor) -> Tensor:
        """Return the ``rows`` (u, P) of ``clients`` (u,), with personal tensors replaced by the server's values."""
        return self._replace(rows, self.models[self.clusters[clients]].to(rows)) if self.slices else rows

    def restore(self, rows: Tensor, trained: Tensor) -> Tensor:
        """Return ``rows`` (u, P), with personal tensors replaced by the values in ``trained`` (u, P)."""
        return self._replace(rows, trained) if self.slices else rows

    def _replace(self, rows: Tensor, values: Tensor) -> Tensor:
        replaced = rows.clone()
        for place in self.slices:
            replaced[:, place] = values[:, place]
        return replaced


@dataclass(eq=False)
class _Receiver:
    """A receiver that filters, records and aggregates the results of one local training.

    Args:
        aggregator: the server's aggregator; ``None`` if clients send nothing.
        column: the column of the training's first client in the aggregation weights.
        update_filter: the server's filter of updates; ``None`` applies no filter.
        local_tensors: the tensors that are not sent; ``None`` if clients send all tensors.
        record: whether to store the sent parameters, before the server's filter.
        kept: the values that `LocalTraining.keep` returned.
        sent: the sent parameters.
    """

    training: LocalTraining
    aggregator: Aggregator | None = None
    column: int = 0
    update_filter: UpdateFilter | None = None
    local_tensors: _LocalTensors | None = None
    record: bool = False
    kept: _Rows = field(default_factory=_Rows)
    sent: _Rows = field(default_factory=_Rows)
    clock: RoundClock = field(default_factory=RoundClock)

    def received(
        self, clients: Tensor, ends: Tensor, seeds: Tensor, client_filter: UpdateFilter | None = None
    ) -> _Update:
        """Return the update of ``clients`` (u,) whose training ended at ``ends``, (u, P) or (u, R) with a step rule.

        The training threads call this method.
        """
        sent, partial, recorded = ends, None, None
        if self.aggregator is not None:
            sent = self._hide(clients, ends[:, : self.aggregator.parameters])
            if client_filter is not None:
                sent = self._filtered(client_filter, clients, sent, seeds)
            recorded = sent.float().cpu().clone() if self.record else None
            if self.update_filter is not None:
                sent = self._filtered(self.update_filter, clients, sent, seeds)
            with self.clock.part("aggregation"):
                partial = self.aggregator.partial_sum(clients + self.column, sent)
        if self.training.keep is None:
            return clients, partial, None, recorded
        starts = self._starts(clients, ends)
        trained = sent if self.local_tensors is None else self.local_tensors.restore(sent, ends)
        if starts.shape[1] > sent.shape[1]:
            # A malicious client has no additional vectors of a step rule, so they stay unchanged.
            further = ends if ends.shape == starts.shape else starts
            trained = torch.cat([trained, further[:, sent.shape[1] :]], dim=1)
        return clients, partial, self.training.keep(trained - starts).cpu(), recorded

    def add(self, update: _Update) -> None:
        """Add the result of `received`; the order of calls decides the last bits of the sums."""
        clients, partial, kept, sent = update
        if self.aggregator is not None and partial is not None:
            with self.clock.part("aggregation"):
                self.aggregator.add(partial)
        if kept is not None:
            self.kept.append((clients, kept))
        if sent is not None:
            self.sent.append((clients, sent))

    def _filtered(self, update_filter: UpdateFilter, clients: Tensor, rows: Tensor, seeds: Tensor) -> Tensor:
        with self.clock.part("defenses"):
            starts = self._hide(clients, self._starts(clients, rows)[:, : rows.shape[1]])
            # The filter must not add noise to tensors that are not sent.
            return self._hide(clients, update_filter.filter(starts, rows, seeds))

    def _hide(self, clients: Tensor, rows: Tensor) -> Tensor:
        return rows if self.local_tensors is None else self.local_tensors.hide(clients, rows)

    def _starts(self, clients: Tensor, like: Tensor) -> Tensor:
        """Return the initial parameters of clients, (u, P), or (u, R) with a step rule."""
        return gather_params(self.training.initial_params, self.training.init_index[clients]).to(like)


def _gathered(parts: _Rows, count: int) -> Tensor | None:
    """Return one row per client, (count, d), with 0 for clients that did not train; ``None`` if ``parts`` is empty."""
    if not parts:
        return None
    rows = parts[0][1].new_zeros(count, *parts[0][1].shape[1:])
    for clients, part in parts:
        rows[clients] = part
    return rows
