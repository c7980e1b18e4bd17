"""The state of a federation after some rounds, and its vectors per client."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.formats import one_line


class ClientVectors:
    """N immutable float32 vectors, one per client, each of length d.

    Methods that change vectors return a new object and copy only the changed vectors. Clients with equal initial
    vectors share memory.

    Args:
        rows: one vector (d,) per client, N in total and at least one; clients that share a vector share the tensor.

    Example:
        >>> import torch
        >>> from shoal.engine import ClientVectors
        >>> before = ClientVectors.same(torch.zeros(2), 3)
        >>> after = before.add_rows(torch.tensor([1]), torch.ones(1, 2))
        >>> after.tensor().tolist(), before.tensor().sum(), len(after.distinct()[0])
        ([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], tensor(0.), 2)
    """

    def __init__(self, rows: tuple[Tensor, ...]) -> None:
        self._rows = rows

    @staticmethod
    def same(row: Tensor, clients: int) -> "ClientVectors":
        """Return the vectors of N ``clients`` that all have the vector ``row`` (d,)."""
        return ClientVectors((row.clone(),) * clients)

    @property
    def shape(self) -> tuple[int, int]:
        """The number of clients N and the vectors' length d."""
        return len(self._rows), len(self._rows[0])

    def __getitem__(self, clients: Tensor) -> Tensor:
        """Return a new tensor (n, d) of the vectors of the clients at positions (n,) int64."""
        if not len(clients):
            return self._rows[0].new_empty(0, self.shape[1])
        return torch.stack([self._rows[i] for i in clients.tolist()])

    def replace_rows(self, clients: Tensor, rows: Tensor) -> "ClientVectors":
        """Replace the vectors of the clients at positions (n,) int64 by ``rows`` (n, d), each client at most once."""
        new = list(self._rows)
        for i, row in zip(clients.tolist(), rows, strict=True):
            # Copies, since a view would hold the memory of all ``rows``.
            new[i] = row.to(new[i], copy=True)
        return ClientVectors(tuple(new))

    def take(self, clients: Tensor) -> "ClientVectors":
        """Return the vectors of the clients at positions (n,) int64, sharing memory."""
        return ClientVectors(tuple(self._rows[i] for i in clients.tolist()))

    def put(self, clients: Tensor, part: "ClientVectors") -> "ClientVectors":
        """Replace the vectors of the clients at positions (n,) int64 by the n vectors of ``part``, sharing memory."""
        new = dict(zip(clients.tolist(), part._rows, strict=True))
        return ClientVectors(tuple(new.get(i, row) for i, row in enumerate(self._rows)))

    def add_rows(self, clients: Tensor, update: Tensor) -> "ClientVectors":
        """Add ``update`` (n, d) to the vectors of the clients at positions (n,) int64, each client at most once."""
        return self.replace_rows(clients, self[clients] + update)

    def tensor(self) -> Tensor:
        """Return a new tensor (N, d) of all vectors."""
        return self[torch.arange(len(self))]

    def distinct(self) -> tuple[Tensor, Tensor]:
        """Return the first client (U,) of each distinct vector, and the index (N,) of each client's vector."""
        first: dict[int, int] = {}
        for client, row in enumerate(self._rows):
            first.setdefault(id(row), client)
        number = {place: u for u, place in enumerate(first)}
        return torch.tensor(list(first.values())), torch.tensor([number[id(row)] for row in self._rows])

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.shape}"


UNKNOWN_RISK = 0.5
"""The risk of every model before the first estimate, which is the chance level of an attack."""

Tensors = Mapping[str, Tensor]
"""Tensors by name, such as an algorithm's own tensors in a `State`."""


@dataclass(frozen=True, eq=False)
class State:
    """The state of a federation after some rounds, which is all that a checkpoint needs to resume.

    Args:
        round: the number of completed rounds.
        models: one model per cluster, (K, P) float32; K may change from round to round.
        risks: the last estimate of each model's risk, (K,) float64.
        assignment: each client's last cluster, (N,) int64; -1 before the client's first participation.
        server: the algorithm's tensors at the server, by name.
        clients: the algorithm's tensors of the clients, by name, (N, ...).
        personal: the algorithm's vectors of the clients, by name, N vectors each. A round copies only its cohort's
            vectors.
        directives: settings of each cluster's defences or of the algorithm, by name, (K,) float64 each (see
            `strength`).
        adversary: the malicious clients' tensors, by name.
        control: the coordinator's tensors, by name.
        risk_intervals: the 95 % interval of each risk estimate, (K, 2) float64; NaN if the interval is unknown.
        trained: the last round in which each client updated each model, (N, K) int64; 0 if the client never did. The
            engine sets this tensor. If an algorithm changes K but not ``trained``, the engine resets ``trained`` to the
            current round's clients.

    Example:
        >>> import torch
        >>> from dataclasses import replace
        >>> from shoal.engine import State
        >>> state = State.initial(torch.zeros(2, 5), clients=3)
        >>> state.risks, state.assignment
        (tensor([0.5000, 0.5000], dtype=torch.float64), tensor([-1, -1, -1]))
        >>> half = torch.tensor([1.0, 0.5], dtype=torch.float64)
        >>> state.strength("pooling"), replace(state, directives={"pooling": half}).strength("pooling")
        (tensor([1., 1.], dtype=torch.float64), tensor([1.0000, 0.5000], dtype=torch.float64))
    """

    round: int
    models: Tensor
    risks: Tensor
    assignment: Tensor
    server: Tensors = field(default_factory=dict)
    clients: Tensors = field(default_factory=dict)
    personal: Mapping[str, ClientVectors] = field(default_factory=dict)
    directives: Tensors = field(default_factory=dict)
    adversary: Tensors = field(default_factory=dict)
    control: Tensors = field(default_factory=dict)
    risk_intervals: Tensor = field(default_factory=lambda: torch.zeros(0, 2, dtype=torch.float64))
    trained: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.int64))
    __repr__ = one_line

    def __post_init__(self) -> None:
        if len(self.risk_intervals) != len(self.risks):  # missing, or for another number of models
            object.__setattr__(self, "risk_intervals", unknown_intervals(len(self.risks)))

    def trainers(self, within: int) -> Tensor:
        """Return a mask (N, K) of clients that trained a model at most ``within`` rounds before its last training.

        If `trained` is empty, a model's trainers are the clients assigned to the model.
        """
        if not self.trained.numel():
            return self.assignment[:, None] == torch.arange(len(self.models))
        # The difference must fit into 64 bits.
        return (self.trained > 0) & (self.trained > self.trained.amax(dim=0) - min(within, int(self.trained.max())))

    def strength(self, name: str) -> Tensor:
        """Return the strength of the directive ``name`` in each cluster, (K,) float64 in [0, 1]; 1 without a directive.

        Raises:
            InputError: the directive is not one number in [0, 1] per cluster.
        """
        clusters = len(self.models)
        values = self.directives.get(name)
        if values is None:
            return torch.ones(clusters, dtype=torch.float64)
        require(
            values.shape == (clusters,) and bool(((values >= 0) & (values <= 1)).all()),
            f"directive '{name}' must be one number in [0, 1] per cluster "
            f"(got {values.tolist()} for {clusters} clusters)",
        )
        return values.double()

    def take(self, clients: Tensor) -> "State":
        """Return the state restricted to the clients at positions (n,) int64, in that order."""
        return replace(
            self,
            assignment=self.assignment[clients],
            trained=self.trained[clients] if self.trained.numel() else self.trained,
            clients={name: rows[clients] for name, rows in self.clients.items()},
            personal={name: rows.take(clients) for name, rows in self.personal.items()},
        )

    def put(self, clients: Tensor, part: "State") -> "State":
        """Return ``part``, a later state of ``clients`` (n,), completed by all other clients of this state.

        If the number of models changed, clients outside ``part`` count as never having trained.
        """
        assignment, trained = self.assignment.clone(), self.trained
        if part.trained.shape[1] != trained.shape[1]:
            trained = torch.zeros(len(assignment), part.trained.shape[1], dtype=torch.int64)
            assignment.fill_(-1)
        assignment[clients] = part.assignment
        return replace(
            part,
            assignment=assignment,
            trained=trained.index_copy(0, clients, part.trained) if trained.numel() else trained,
            clients={name: self.clients[name].index_copy(0, clients, rows) for name, rows in part.clients.items()},
            personal={name: self.personal[name].put(clients, rows) for name, rows in part.personal.items()},
        )

    def warm_start(self, start: "State") -> "State":
        """Return this initial state with the models, risks and number of rounds of ``start``.

        The assignment and all named tensors are copied from ``start`` if their shapes are equal. Tensors with a
        different shape keep their initial values.

        Raises:
            InputError: the two states have different numbers of models.
        """
        had, begins = len(start.models), len(self.models)
        require(
            had == begins,
            f"'start' must have as many models as the algorithm has clusters (got {had}); this algorithm has {begins}",
        )
        return replace(
            self,
            round=start.round,
            models=start.models.to(self.models),
            risks=start.risks,
            risk_intervals=start.risk_intervals,
            assignment=start.assignment if start.assignment.shape == self.assignment.shape else self.assignment,
            server=_of_same_shape(self.server, start.server),
            clients=_of_same_shape(self.clients, start.clients),
            personal=_of_same_shape(self.personal, start.personal),
            directives=_of_same_shape(self.directives, start.directives),
            adversary=_of_same_shape(self.adversary, start.adversary),
            control=_of_same_shape(self.control, start.control),
            # Clients that trained a model earlier are still its members.
            trained=start.trained if start.trained.shape == self.trained.shape else self.trained,
        )

    @staticmethod
    def initial(models: Tensor, clients: int) -> "State":
        """Return the state before the first round, with ``models`` (K, P), unknown risks and N ``clients``."""
        risks = torch.full((len(models),), UNKNOWN_RISK, dtype=torch.float64)
        never = torch.zeros(clients, len(models), dtype=torch.int64)
        return State(0, models, risks, torch.full((clients,), -1), trained=never)


@dataclass(frozen=True, eq=False)
class RiskEstimate:
    """The risk estimates of K models.

    Args:
        risks: the balanced accuracy of membership inference on each model, (K,) float64 in [0, 1].
        intervals: the 95 % interval of each estimate, (K, 2) float64; NaN if the interval is unknown.
    """

    risks: Tensor
    intervals: Tensor


def unknown_intervals(models: int) -> Tensor:
    """Return unknown intervals for ``models`` estimates, (models, 2) float64, all NaN."""
    return torch.full((models, 2), torch.nan, dtype=torch.float64)


_Values = TypeVar("_Values", Tensor, ClientVectors)


def _of_same_shape(initial: Mapping[str, _Values], start: Mapping[str, _Values]) -> dict[str, _Values]:
    return {
        name: start[name] if name in start and start[name].shape == tensor.shape else tensor
        for name, tensor in initial.items()
    }
