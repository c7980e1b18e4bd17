"""Statistics of every record, which an honest-but-curious server computes from clients' updates for its attacks.

The server sent the model w and receives the model w_k of client k. If the client trained on a record x, the record's
loss at w_k is low, and grad l(w; x) points along w - w_k. Attacks on these statistics (`update_membership.py`,
`source_inference.py`) need neither shadow models nor training.
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
"""The value of ``client`` for a record that no client trained on."""


@dataclass(frozen=True, eq=False)
class OwnedRecords:
    """M records and the client that trained on each record.

    Args:
        x: the inputs, (M, ...).
        y: labels, (M,) int64, or targets, (M, d) float32.
        client: the id of the client that trained on each record, (M,) int64; -1 if no client did.
        group: the group whose distribution each record follows, (M,) int64.
        groups: the names of the groups.

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
        """The class of each record, (M,) int64; 0 in a regression."""
        return torch.zeros(len(self), dtype=torch.int64) if self.y.is_floating_point() else self.y.cpu()

    @staticmethod
    def from_federation(federation: Federation) -> "OwnedRecords":
        """Collect the training examples of all clients, followed by the test examples, which no client trained on."""
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
    """The statistics of T recorded rounds, N clients and M records, with NaN if a client did not take part in a round.

    Args:
        rounds: the rounds' numbers, (T,) int64.
        clients: the clients' ids in ascending order, (N,) int64.
        assignment: the cluster whose model each client trained, (T, N) int64; -1 if the client did not take part.
        loss: the loss of each client's sent model on each record, (T, N, M) float32.
        cosine: the cosine of grad l(w; x) and w - w_k, (T, N, M) float32, with w the model of the client's cluster; 0
            if either vector is 0.
        difference: ``|D|^2 - |D - g|^2 = 2 <D, g> - |g|^2`` for D = w - w_k and g = grad l(w; x), (T, N, M) float32.
        label: the class of each record, (M,) int64; 0 in a regression.
        client: the index in ``clients`` of the client that trained on each record, (M,) int64; -1 if no client did.
        group: the group of each record, (M,) int64.
        groups: the names of the groups.
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
    """A server's membership attack on each client's updates, as a frozen dataclass of settings."""

    name: ClassVar[str]
    """The attack's key in audit.json."""
    title: ClassVar[str]
    view: ClassVar[View]
    threshold: ClassVar[float]
    """The largest score that is classified as a non-member."""

    def score(self, scores: UpdateScores) -> Floats:
        """Return one score per client and record, (N, M), with NaN for a client without an update.

        A higher score means that the client more likely trained on the record.
        """
        ...


def update_scores(rounds: Iterable[RoundUpdates], records: OwnedRecords, engine: Engine) -> UpdateScores:
    """Compute the statistics of every record per client and recorded round.

    The memory needed is one round's updates, a batch of gradients, and 12 bytes per record, client and round.

    Args:
        rounds: the recorded updates.
        records: the M records to score.
        engine: the engine of the trained model, in float32 for exact losses.

    Raises:
        InputError: there are no records or rounds, a client sent two updates in a round, or updates or models are not
            finite or have a wrong size.

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
    require(len(records) > 0, "'records' must hold at least one record (got none)")
    owners = records.client[records.client != NOBODY].unique().tolist()
    parts: list[tuple[int, list[int], Ints, dict[str, Tensor]]] = []
    for updates in rounds:
        try:
            check_updates(updates, engine.model.layout.size)
        except InputError as error:
            raise InputError(f"round {updates.round}: {error}") from error
        values = {"loss": _losses(updates, records, engine), **_gradient_values(updates, records, engine)}
        parts.append((updates.round, updates.clients.tolist(), updates.assignment.numpy(), values))
    require(bool(parts), "'rounds' must hold the updates of at least one round (got none)")
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
    """Raise `InputError` if a round's updates do not fit a network of ``size`` parameters or are not finite."""
    for name, rows, count in (("models", updates.models, None), ("updates", updates.updates, len(updates))):
        shape = tuple(rows.shape)
        fits = len(shape) == 2 and shape[1] == size and count in (None, shape[0])
        require(fits, f"'{name}' must have shape ({count or 'K'}, {size}) for this network (got {shape})")
        require(bool(torch.isfinite(rows).all()), f"'{name}' must hold finite numbers (got NaN or an infinite value)")
    assignment, models = updates.assignment, len(updates.models)
    inside = bool(((assignment >= 0) & (assignment < models)).all())
    fits = assignment.shape == updates.clients.shape and inside
    require(fits, f"'assignment' must hold one model index per client, at least 0 and below {models}")
    ids, counts = updates.clients.unique(return_counts=True)
    if bool((counts > 1).any()):
        raise InputError(f"'clients' must hold each client once (got client {int(ids[counts > 1][0])} more than once)")


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
    """Compute the cosine and the difference (n, B) of steps (n, p) and gradients (B, p)."""
    inner, squares = steps @ gradients.T, gradients.square().sum(dim=1)
    lengths = steps.norm(dim=1)[:, None] * squares.sqrt()
    return torch.where(lengths > 0, inner / lengths.clamp(min=1e-30), 0).cpu(), (2 * inner - squares).cpu()


def mean_over_rounds(values: Floats) -> Floats:
    """Average values (T, N, M) over rounds to (N, M), ignoring NaN; the average is NaN if all values are NaN."""
    present = ~np.isnan(values)
    count = present.sum(axis=0)
    total = np.where(present, values, 0.0).sum(axis=0)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
