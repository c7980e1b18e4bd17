"""The joint attack, which infers the memberships of all listed records at once from every recorded round.

A client's update, or a model's mean update, is a sum of per-example gradients and noise of known size. This is a linear
regression for the memberships ``z_j`` (0 or 1), with clipped gradients ``g_j`` and known factors ``c_j``:

    move_t = -sum_j z_j c_j g_j(start_t) + noise_t

Gradients are computed at the round's start. If clients take several steps without noise, gradients are computed half
way between the round's start and end. A test of each record alone (`matched_filter`) can attribute one member's
contribution to another record; the joint solution does not. A record's score is the log odds of its membership, under a
normal prior for z.

**The attacker has a list** of candidates that contains members. The attacker also knows the clients' training, and
which clients trained each model in each round. Members outside the list add noise and weaken the attack.

Source: ours, a Bayesian linear regression.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from shoal.attacks.span.candidates import Candidates
from shoal.attacks.span.dense_layers import DenseLayer, clip_layer_factors, dense_layers, scale_rows
from shoal.attacks.span.knowledge import Knowledge
from shoal.attacks.span.layer_moves import Move, moves_of_models, moves_of_updates
from shoal.core.errors import require
from shoal.core.settings import settings
from shoal.data.preferences import View
from shoal.engine import Engine, LocalSGD, RoundUpdates
from shoal.metrics.intervals import Floats

_MISFIT = 0.1
"""The fraction of an update's length that the computed gradients do not explain, because gradients change with every
local step."""

_MAX_RECORDS = 6000
"""The largest number of records to solve for at once; longer lists are solved in parts."""

Merged = tuple[Tensor, Tensor]
"""The client ids (n,) of a round, and the weight of each client's update in each model's mean update, (K, n)."""


@settings
class _JointAttack:
    """The common part of `UpdateJoint` and `ModelJoint`."""

    prior: Annotated[float, Field(gt=0, lt=1, strict=True)] | None = None

    def _score(
        self, moves: Sequence[Move], candidates: Candidates, engine: Engine, knowledge: Knowledge
    ) -> tuple[Floats, Floats]:
        local = knowledge.local
        plain = local is not None and local.optimizer is None and not knowledge.control_variates
        require(plain, "the joint attack needs known local training by plain SGD, without control variates")
        for values, name in ((candidates.client, "client"), (candidates.y, "label")):
            require(values is not None, f"the joint attack needs the {name} of each candidate (got none)")
        score = np.full(len(candidates.x), np.nan)
        threshold = score.copy()
        for unknown in _Regression(candidates, engine, knowledge, self.prior).solve(moves):
            rows, odds = unknown.rows.numpy(), unknown.log_odds().numpy()
            score[rows], threshold[rows] = odds, np.quantile(odds, 1 - unknown.prior)
        return score, threshold


@settings
class UpdateJoint(_JointAttack):
    """The joint attack of a server on each client's updates.

    Args:
        prior: the fraction of members on a client's list. ``None`` means the client's number of examples divided by the
            list's length, or 1/2 if this ratio is at least 1.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import Candidates, Knowledge, UpdateJoint
        >>> draw, labels = shoal.Stream(0).generator(), [0, 1] * 4
        >>> clients = [(torch.randn(8, 20, generator=draw), labels) for _ in range(5)]
        >>> federation = shoal.Federation.from_tensors(clients, test=(torch.randn(40, 20, generator=draw), labels * 5))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=20, classes=2))
        >>> local = shoal.LocalSGD(batch_size="all", learning_rate=0.5)
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(
        ...         federation, shoal.FedAvg(), local, engine, shoal.Stream(0), record_every=1
        ...     )
        ...     seen = [report.updates for _, report in training.rounds(training.start(), 20)]
        ...     x, y = (torch.cat([getattr(part, of) for part in (federation.clients, federation.test)]) for of in "xy")
        ...     asked = Candidates(x, y=y, client=torch.arange(5).repeat_interleave(8).repeat(2))
        ...     score, threshold = UpdateJoint().score(seen, asked, engine, Knowledge(local, examples=8))
        ...
        >>> bool((score[:40] > threshold[:40]).mean() > 0.8), bool((score[40:] > threshold[40:]).mean() < 0.2)
        (True, True)
    """

    name: ClassVar[str] = "joint"
    title: ClassVar[str] = "joint attack on updates, with a list"
    view: ClassVar[View] = "server"

    def score(
        self, rounds: Iterable[RoundUpdates], candidates: Candidates, engine: Engine, knowledge: Knowledge
    ) -> tuple[Floats, Floats]:
        """Return scores (M,) and thresholds (M,), with NaN for records of a client without updates.

        Args:
            rounds: the recorded updates.
            candidates: the M records to score; each needs a ``client``, whose updates give the score.

        Raises:
            InputError: the candidates lack clients or labels, local training is unknown or not plain SGD, clients use
                control variates, or the network has no dense layer.
        """
        recorded = sorted(rounds, key=lambda updates: updates.round)
        require(bool(recorded), "'rounds' must hold the updates of at least one round (got none)")
        clients = torch.cat([updates.clients for updates in recorded]).unique()
        moves = moves_of_updates(recorded, clients, continued=knowledge.continued)
        return self._score(moves, candidates, engine, knowledge)


@settings
class ModelJoint(_JointAttack):
    """The joint attack of another client on each model's mean updates.

    All clients that train a model share one list of candidates.

    Args:
        prior: the fraction of members on a cluster's list. ``None`` means the clients' number of examples divided by
            the list's length, or 1/2 if this ratio is at least 1.
    """

    name: ClassVar[str] = "joint-models"
    title: ClassVar[str] = "joint attack on models' moves, with a list"
    view: ClassVar[View] = "client"

    def score(
        self,
        models: Tensor,
        merged: Sequence[Merged],
        candidates: Candidates,
        engine: Engine,
        knowledge: Knowledge,
        first: int = 1,
    ) -> tuple[Floats, Floats]:
        """Return scores (M,) and thresholds (M,), with NaN for records of a client that trained no model.

        Args:
            models: the models before the first round and after each of T rounds, (T + 1, K, P).
            merged: the clients and weights of each of the T rounds.
            candidates: the M records to score; each needs a ``client``.
            first: the round number of the first update.
        """
        moves = moves_of_models(models, candidates, engine, knowledge, first)
        summed = list[Move]()
        for move in moves:
            clients, weights = merged[move.number - first]
            here = weights[move.row] > 0
            summed.append(replace(move, clients=clients[here], weights=weights[move.row, here]))
        return self._score([move for move in summed if len(move.clients)], candidates, engine, knowledge)


@dataclass(eq=False)
class _Unknown:
    """The unknown memberships of m records, solved together.

    Args:
        rows: the records' indices among the candidates, ascending, (m,) int64.
        prior: the fraction of members.
        gram: the sum over updates of ``<c_i g_i, c_j g_j>``, divided by the noise's variance, (m, m) float64.
        target: the sum over updates of ``<c_i g_i, -move>``, divided by the noise's variance, (m,) float64.
        products: a cache of each layer's last inputs (m, d) and their inner products (m, m).
    """

    rows: Tensor
    prior: float
    gram: Tensor
    target: Tensor
    products: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    @staticmethod
    def of(rows: Tensor, prior: float) -> "_Unknown":
        gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        return _Unknown(rows, prior, gram, gram.new_zeros(len(rows)))

    def log_odds(self) -> Tensor:
        """Return each record's log odds of membership minus the prior log odds, (m,) float64."""
        precision = 1 / (self.prior * (1 - self.prior))
        identity = torch.eye(len(self.rows), dtype=torch.float64)
        factor, failed = torch.linalg.cholesky_ex(self.gram + precision * identity)
        if failed:
            # Rounding of large products can leave eigenvalues below 0.
            values, vectors = torch.linalg.eigh(self.gram)
            inverse = vectors / (values.clamp(min=0) + precision) @ vectors.T
        else:
            inverse = torch.cholesky_inverse(factor)
        mean, variance = inverse @ (self.target + precision * self.prior), inverse.diagonal()
        # The posterior without the record's prior, so that the moves alone decide.
        evidence = (1 / variance - precision).clamp(min=0)
        return mean / variance - precision * self.prior - evidence / 2

    def products_of(self, layer: int, inputs: Tensor) -> Tensor:
        """Return the inner products (m, m) of a layer's inputs (m, d)."""
        last = self.products.get(layer)
        if last is None or not last[0].equal(inputs):
            self.products[layer] = last = inputs, inputs @ inputs.T
        return last[1]


@dataclass(frozen=True, eq=False)
class _Regression:
    """The regression of moves on the gradients of candidates."""

    candidates: Candidates
    engine: Engine
    knowledge: Knowledge
    prior: float | None

    @cached_property
    def layers(self) -> list[DenseLayer]:
        """The trained dense layers of the network."""
        return dense_layers(self.engine.model)

    @cached_property
    def rows_of(self) -> dict[int, Tensor]:
        """The indices of each client's candidates by client id, ascending."""
        client = self.candidates.client
        assert client is not None
        order = torch.argsort(client, stable=True)
        ids, counts = client.unique(return_counts=True)
        none = torch.empty(0, dtype=torch.int64)
        return defaultdict(lambda: none, zip(ids.tolist(), order.split(counts.tolist()), strict=True))

    def solve(self, moves: Sequence[Move]) -> list[_Unknown]:
        """Return the unknown memberships of all lists, with the equations of all updates."""
        lists = self._lists(moves)
        of_client = {client: parts for clients, parts in lists for client in clients}
        of_start: dict[int, list[Move]] = defaultdict(list)
        for number, move in enumerate(moves):
            of_start[number if self._halfway else move.start.data_ptr()].append(move)
        for group in of_start.values():
            rows = self._rows(torch.cat([move.clients for move in group]).unique().tolist())
            if len(rows):
                self._add_moves(group, rows, of_client)
        return [unknown for _, parts in lists for unknown in parts]

    @property
    def _halfway(self) -> bool:
        """Whether gradients are computed half way between a round's start and end."""
        return not self.knowledge.noisy and self.knowledge.steps != 1

    def _lists(self, moves: Sequence[Move]) -> list[tuple[list[int], list[_Unknown]]]:
        """Return groups of clients that share models, and each group's candidates in parts of limited size."""
        joined = dict[int, int]()

        def first(client: int) -> int:
            while joined.setdefault(client, client) != client:
                client = joined[client]
            return client

        for move in moves:
            for client in move.clients.tolist():
                joined[first(client)] = first(int(move.clients[0]))
        together: dict[int, list[int]] = defaultdict(list)
        for client in sorted(joined):
            together[first(client)].append(client)
        lists = list[tuple[list[int], list[_Unknown]]]()
        for clients in together.values():
            rows = self._rows(clients)
            if not len(rows):
                continue
            # Every part has records of all clients.
            count = math.ceil(len(rows) / _MAX_RECORDS)
            share = sum(map(self._size, clients)) / len(rows)
            prior = self.prior or (share if share < 1 else 0.5)
            lists.append((clients, [_Unknown.of(rows[part::count].contiguous(), prior) for part in range(count)]))
        return lists

    def _rows(self, clients: Sequence[int]) -> Tensor:
        return torch.cat([self.rows_of[client] for client in clients]).sort().values

    def _add_moves(self, group: Sequence[Move], rows: Tensor, of_client: Mapping[int, Sequence[_Unknown]]) -> None:
        """Add the equations of updates from the same start; ``rows`` are the records of these updates' clients."""
        start, place = torch.nan_to_num(group[0].start), torch.full((len(self.candidates.x),), -1)
        place[rows] = torch.arange(len(rows))
        factors = self._gradients(start + group[0].move.nan_to_num().float() / 2 if self._halfway else start, rows)
        vectors = torch.stack([move.move for move in group])
        variances, decay = self._variances(group, vectors), self._decay(group[0].number)
        matrices = [
            layer.matrices(self.engine.model, vectors).double()
            - decay * layer.matrices(self.engine.model, start).double()
            for layer in self.layers
        ]
        for i, move in enumerate(group):
            rows = self._rows(move.clients.tolist())
            factor = self._factor(move, rows)
            for unknown in of_client.get(int(move.clients[0]), ()):
                inside = torch.isin(rows, unknown.rows)
                gram = torch.zeros(2 * (int(inside.sum()),), dtype=torch.float64)
                target = torch.zeros(len(gram), dtype=torch.float64)
                for layer, ((inputs, errors), matrix) in enumerate(zip(factors, matrices, strict=True)):
                    a, e = inputs[place[rows]].double(), scale_rows(errors[place[rows]].double(), factor)
                    # The records of other parts count at their prior.
                    rest = matrix[i] + unknown.prior * _flat(e[~inside]).T @ _flat(a[~inside])
                    a, e = a[inside], e[inside]
                    if a.dim() == 2:
                        gram += unknown.products_of(layer, a) * (e @ e.T)
                        target -= ((e @ rest) * a).sum(dim=1)
                    else:
                        gradients = (e.mT @ a).flatten(1)
                        gram += gradients @ gradients.T
                        target -= gradients @ rest.flatten()
                within = torch.searchsorted(unknown.rows, rows[inside])
                unknown.gram[within[:, None], within] += gram / variances[i]
                unknown.target[within] += target / variances[i]

    def _gradients(self, start: Tensor, rows: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Compute the records' inputs and errors in each layer, clipped as by the clients."""
        x, y = self.candidates.x[rows.to(self.candidates.x.device)], self.candidates.y
        assert y is not None
        known = self.knowledge
        return clip_layer_factors(self.engine, start, self.layers, x, y[rows], known.dtype, known.max_grad_norm)

    def _factor(self, move: Move, rows: Tensor) -> Tensor:
        """Return the factor of each record's gradient in an update, (m,) float64."""
        client, local = self.candidates.client, self.knowledge.local
        assert client is not None
        assert local is not None
        local, of_move = local.at_round(move.number), zip(move.clients.tolist(), move.weights.tolist(), strict=True)
        per_client = {number: weight * _reach(local, self._size(number)) for number, weight in of_move}
        return torch.tensor([per_client[c] for c in client[rows].tolist()], dtype=torch.float64)

    def _size(self, client: int) -> int:
        """Return a client's number of examples; for a client without candidates, the median over candidates."""
        examples, rows = self.candidates.examples, self.rows_of[client]
        if examples is None:
            require(
                self.knowledge.examples is not None,
                "the joint attack needs the number of examples of each client (got none)",
            )
            assert self.knowledge.examples is not None
            return self.knowledge.examples
        return int(examples[rows[0]] if len(rows) else examples.median())

    def _variances(self, group: Sequence[Move], vectors: Tensor) -> list[float]:
        """Return each update's noise variance per parameter, including the misfit of the gradients."""
        lengths, count = vectors.double().norm(dim=1), vectors.shape[1]
        misfit, variances = (_MISFIT * lengths) ** 2 / count, list[float]()
        for move, length, unexplained in zip(group, lengths, misfit.tolist(), strict=True):
            sizes = [self._size(client) for client in move.clients.tolist()]
            # One per size, since most clients of a model have equally many examples.
            deviation = {
                size: float(replace(self.knowledge, examples=size).deviation(move.number, length, count))
                for size in set(sizes)
            }
            noise = sum(
                (weight * deviation[size]) ** 2 for size, weight in zip(sizes, move.weights.tolist(), strict=True)
            )
            variances.append(max(noise * move.amplified**2 + unexplained, 1e-300))
        return variances

    def _decay(self, number: int) -> float:
        """Return the multiple of the start that weight decay adds in a round; 0 if unknown."""
        return (self.knowledge.decay_multiple(number) or 0.0) if self.knowledge.decays else 0.0


def _reach(local: LocalSGD, size: int) -> float:
    """Return the factor of an example's gradient in the update of a client with ``size`` examples."""
    batch, steps = local.batch(size), local.steps_of(size)
    # DP-SGD divides by the nominal batch size, even for a shorter last batch.
    nominal = local.private and local.gradient_privacy is not None and not local.gradient_privacy.poisson
    share = steps / math.ceil(size / batch) / batch if nominal else steps / size
    # Momentum repeats a step's gradient in all later steps.
    repeated = sum((1 - local.momentum**after) / (1 - local.momentum) for after in range(1, steps + 1)) / steps
    return local.learning_rate * share * repeated


def _flat(values: Tensor) -> Tensor:
    return values.flatten(0, -2)
