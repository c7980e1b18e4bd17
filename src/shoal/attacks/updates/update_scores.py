"""Values of every record that an honest-but-curious server computes from clients' updates, for its attacks.

The server sent the model w, and receives each client's w_k. A client that trained on a record x moved against the
gradient of its loss, so the record's loss at w_k is low, and grad l(w; x) points along w - w_k. The attacks on these
values (`update_membership.py`, `source_inference.py`) need only recorded updates: no shadow models, no training.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.core.formats import one_line
from shoal.data.federation import Federation
from shoal.data.preferences import View
from shoal.engine import Engine, RoundUpdates
from shoal.metrics.intervals import Floats, Ints

NOBODY = -1
"""The client of a record that no client trained on."""


@dataclass(frozen=True, eq=False)
class OwnedRecords:
    """M records and the clients that trained on them.

    Args:
        x: inputs (M, ...).
        y: (M,) int64 labels, or (M, d) float32 targets.
        client: (M,) int64, ids of clients; -1: no client trained on the record.
        group: (M,) int64, the group whose distribution each record follows.
        groups: names of the groups.

    Example:
        >>> import shoal
        >>> from shoal.attacks import OwnedRecords
        >>> federation = shoal.Federation.from_tensors([([[0.0], [1.0]], [0, 1]), ([[2.0]], [0])], test=([[3.0]], [1]))
        >>> records = OwnedRecords.from_federation(federation)
        >>> records.client, records.x.flatten()
        (tensor([ 0,  0,  1, -1]), tensor([0., 1., 2., 3.]))
    """

    x: Tensor
    y: Tensor
    client: Tensor
    group: Tensor
    groups: tuple[str, ...]
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.y)

    @property
    def label(self) -> Tensor:
        """(M,) int64, the class of each record; 0 in a regression."""
        return torch.zeros(len(self), dtype=torch.int64) if self.y.is_floating_point() else self.y.cpu()

    @staticmethod
    def from_federation(federation: Federation) -> "OwnedRecords":
        """Collect the training examples of all clients, then the test examples, which no client trained on.

        The victim of a property attack owns all its examples, although it trains on some of them per round.
        """
        shards, owners, test = federation.clients, federation.clients.owners(), federation.test
        return OwnedRecords(
            x=torch.cat([shards.x[shards.indices.to(shards.x.device)], test.x]),
            y=torch.cat([shards.y[shards.indices.to(shards.y.device)], test.y]),
            client=torch.cat([federation.ids[owners], torch.full((len(test),), NOBODY)]),
            group=torch.cat([federation.groups_of("clients"), test.group]),
            groups=federation.groups,
        )


@dataclass(frozen=True, eq=False)
class UpdateScores:
    """The values of T recorded rounds, N clients and M records; NaN if a client did not take part in a round.

    Args:
        rounds: (T,) int64, numbers of the rounds.
        clients: (N,) int64, ids of the clients, in order.
        assignment: (T, N) int64, the cluster whose model each client trained; -1: it did not take part.
        loss: (T, N, M) float32, the loss of each client's sent model on each record.
        cosine: (T, N, M) float32, the cosine of grad l(w; x) and w - w_k, with w the model of the client's cluster; 0
            if one of them is 0.
        difference: (T, N, M) float32, ``|D|^2 - |D - g|^2 = 2 <D, g> - |g|^2`` of D = w - w_k and g = grad l(w; x).
        label: (M,) int64, each record's class; 0 in a regression.
        client: (M,) int64, the position in ``clients`` of the client that trained on each record; -1: none.
        group: (M,) int64, each record's group.
        groups: names of the groups.
    """

    rounds: Ints
    clients: Ints
    assignment: Ints
    loss: NDArray[np.float32]
    cosine: NDArray[np.float32]
    difference: NDArray[np.float32]
    label: Ints
    client: Ints
    group: Ints
    groups: tuple[str, ...]
    __repr__ = one_line


@runtime_checkable
class UpdateAttack(Protocol):
    """A membership attack of the server on single clients: a frozen dataclass of its settings."""

    name: ClassVar[str]
    """Its key in audit.json."""
    title: ClassVar[str]
    view: ClassVar[View]
    threshold: ClassVar[float]
    """The largest score of a non-member."""

    def score(self, scores: UpdateScores) -> Floats:
        """Return scores (N, M), higher if a record is more likely a member of that client's; NaN without an update."""
        ...


def update_scores(rounds: Iterable[RoundUpdates], records: OwnedRecords, engine: Engine) -> UpdateScores:
    """Compute the values of every record, by client and recorded round.

    Memory holds one round's updates, a batch of gradients and the values (12 bytes per record, client and round).

    Args:
        rounds: recorded updates.
        records: M records.
        engine: the engine of the trained model, in float32 for exact losses.

    Raises:
        InputError: no record, no recorded round, two updates of one client in a round, or updates or models of another
            size or not finite.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import OwnedRecords, update_scores
        >>> draw = shoal.Stream(0).generator()
        >>> clients = [(torch.randn(4, 50, generator=draw), [0, 1, 0, 1]) for _ in range(5)]
        >>> federation = shoal.Federation.from_tensors(clients, test=(torch.randn(20, 50, generator=draw), [0, 1] * 10))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=50, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     training = shoal.Training(*setting, record_every=1)
        ...     _, report = training.round(training.start())
        ...     scores = update_scores([report.updates], OwnedRecords.from_federation(federation), engine)
        ...
        >>> scores.cosine.shape, scores.client.tolist()[:6]
        ((1, 5, 40), [0, 0, 0, 0, 1, 1])
        >>> bool(scores.loss[0, 0, :4].mean() < scores.loss[0, 1:, :4].mean())
        True
    """
    require(len(records) > 0, "there are no records to attack")
    owners = records.client[records.client != NOBODY].unique().tolist()
    parts: list[tuple[int, list[int], Ints, dict[str, Tensor]]] = []
    for updates in rounds:
        try:
            check_updates(updates, engine.model.layout.size)
        except InputError as error:
            raise InputError(f"round {updates.round}: {error}") from error
        values = {"loss": _losses(updates, records, engine), **_gradient_values(updates, records, engine)}
        parts.append((updates.round, updates.clients.tolist(), updates.assignment.numpy(), values))
    require(bool(parts), "no round's updates were recorded")
    clients = sorted({*owners, *(client for _, senders, _, _ in parts for client in senders)})
    position = {client: i for i, client in enumerate(clients)}
    shape = (len(parts), len(clients), len(records))
    matrices = {name: np.full(shape, np.nan, dtype=np.float32) for name in ("loss", "cosine", "difference")}
    assignment = np.full(shape[:2], NOBODY, dtype=np.int64)
    for t, (_, senders, clusters, values) in enumerate(parts):
        columns = [position[client] for client in senders]
        assignment[t, columns] = clusters
        for name, matrix in matrices.items():
            matrix[t, columns] = values.pop(name).numpy()
    return UpdateScores(
        rounds=np.array([number for number, _, _, _ in parts], dtype=np.int64),
        clients=np.array(clients, dtype=np.int64),
        assignment=assignment,
        **matrices,
        label=records.label.numpy(),
        client=np.array([position.get(client, NOBODY) for client in records.client.tolist()], dtype=np.int64),
        group=records.group.numpy(),
        groups=records.groups,
    )


def check_updates(updates: RoundUpdates, size: int) -> None:
    """Raise `InputError` unless a round's updates can be attacked, for a network of ``size`` numbers."""
    for name, rows, count in (("models", updates.models, None), ("updates", updates.updates, len(updates))):
        shape = tuple(rows.shape)
        fits = len(shape) == 2 and shape[1] == size and count in (None, shape[0])
        require(fits, f"'{name}' must have shape ({count or 'K'}, {size}) for this network; got {shape}")
        require(bool(torch.isfinite(rows).all()), f"'{name}' must be finite numbers; some are NaN or infinite")
    assignment, models = updates.assignment, len(updates.models)
    inside = bool(((assignment >= 0) & (assignment < models)).all())
    fits = assignment.shape == updates.clients.shape and inside
    require(fits, f"'assignment' must have one of the {models} models, from 0, for each client")
    ids, counts = updates.clients.unique(return_counts=True)
    if bool((counts > 1).any()):
        raise InputError(
            f"'clients' must be different clients, since the attacks on updates take one update from each; "
            f"client {int(ids[counts > 1][0])} has {int(counts.max())}"
        )


def _losses(updates: RoundUpdates, records: OwnedRecords, engine: Engine) -> Tensor:
    """Compute the losses (n, M) float32 of the models that the n clients sent."""
    losses = torch.empty(len(updates), len(records))
    for i, (cluster, update) in enumerate(zip(updates.assignment.tolist(), updates.updates, strict=True)):
        outputs = engine.outputs(updates.models[cluster] + update, records.x)
        losses[i] = engine.model.loss(outputs, records.y.to(outputs.device)).cpu()
    return losses


def _gradient_values(updates: RoundUpdates, records: OwnedRecords, engine: Engine) -> dict[str, Tensor]:
    """Compute the values "cosine" and "difference", (n, M) float32 each."""
    cosine, difference = torch.empty(2, len(updates), len(records))
    for cluster in updates.assignment.unique().tolist():
        senders = torch.nonzero(updates.assignment == cluster).flatten()
        # Buffers, such as the averages of batch norm, have no gradient.
        steps = -updates.updates[senders, : engine.model.layout.trainable].to(engine.device)
        compare = partial(_compare, steps)
        batches = list(engine.example_gradients_into(compare, updates.models[cluster], records.x, records.y))
        cosine[senders] = torch.cat([values for values, _ in batches], dim=1)
        difference[senders] = torch.cat([values for _, values in batches], dim=1)
    return {"cosine": cosine, "difference": difference}


def _compare(steps: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Compute cosine and difference (n, B) of steps (n, p) and gradients (B, p)."""
    inner, squares = steps @ gradients.T, gradients.square().sum(dim=1)
    lengths = steps.norm(dim=1)[:, None] * squares.sqrt()
    return torch.where(lengths > 0, inner / lengths.clamp(min=1e-30), 0).cpu(), (2 * inner - squares).cpu()


def mean_over_rounds(values: Floats) -> Floats:
    """Average values (T, N, M) over the rounds in which they are not NaN, to (N, M); NaN if they always are."""
    present = ~np.isnan(values)
    count = present.sum(axis=0)
    total = np.where(present, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
