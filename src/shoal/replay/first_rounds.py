"""The first rounds of a run, repeated to collect what a client and the server receive in each round.

A client receives the models of all clusters, and the server receives each client's update. No file of a run stores the
models and updates of each round.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest

import torch
from torch import Tensor

from shoal.core.formats import one_line
from shoal.engine import RoundReport, RoundUpdates, State, Training

ROUNDS = 5
"""The largest number of rounds for span attacks without noise."""

MAX_SECONDS = 600.0
"""Time limit in seconds for repeating all rounds for the joint attack; later rounds are not read."""

MAX_BYTES = 1_000_000_000
"""Memory limit for updates, and for models beyond the first `ROUNDS` rounds; rounds beyond it are read without
updates."""


@dataclass(eq=False)
class FirstRounds:
    """The models and updates of the first T rounds of a federation, collected during training.

    Args:
        first: the number of the first collected round.
        models: the models before the first round and after each round, T + 1 tensors (K, P).
        merged: per round, the ids (n,) of the clients that sent updates and their weights (K, n) in each model.
        updates: the updates that the server received, per round up to the memory limit (`MAX_BYTES`).
        senders: the ids of the clients that sent an update in any collected round, (m,) int64.
        most: the largest T.
        with_updates: whether to keep updates.
    """

    first: int = 1
    models: list[Tensor] = field(default_factory=list)
    merged: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    updates: list[RoundUpdates] = field(default_factory=list)
    senders: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    most: int = field(default_factory=lambda: ROUNDS)
    with_updates: bool = True
    __repr__ = one_line

    def watched(self, training: Training, state: State, upto: int) -> Iterator[tuple[State, RoundReport]]:
        """Run `Training.rounds`, collecting the first rounds without affecting training.

        Collection stops when a client leaves and the forgetting method changes the models.
        """
        fitting = MAX_BYTES // (4 * state.models.numel())
        self.first, last = state.round + 1, min(upto, state.round + min(self.most, max(ROUNDS, fitting)))
        self.models.append(state.models.cpu())
        room, ids = MAX_BYTES, training.federation.ids
        while state.round < last:
            room -= 4 * len(training.cohort(state.round + 1)) * training.engine.model.layout.size
            state, report = replace(training, record_every=int(self.with_updates and room >= 0)).round(state)
            if report.departure is not None and not report.departure.before.equal(report.departure.after):
                # Its clients trained from other models than the round before left.
                yield state, replace(report, updates=None)
                break
            self.models.append(state.models.cpu())
            if report.updates is not None:
                self.updates.append(report.updates)
            sent = [local for local in report.plan.trainings if local.weights is not None]
            clients = torch.cat([ids[:0], *(ids[report.cohort[local.participants()]] for local in sent)])
            parts = [local.weights[:, local.participants()] for local in sent if local.weights is not None]
            self.merged.append((clients, torch.cat(parts, dim=1) if parts else torch.empty(len(self.models[-1]), 0)))
            self.senders = torch.cat([self.senders, clients]).unique()
            yield state, replace(report, updates=None)
        yield from replace(training, record_every=0).rounds(state, upto)

    def moves(self) -> Tensor:
        """Return the models before the first round and after each round, (T + 1, R, P).

        If the number K of models changes, R is the sum over the different K. A model stays constant in rounds with a
        different K.
        """
        parts = [list(part) for _, part in groupby(self.models, key=len)]
        rows, done = list[Tensor](), 0
        for part, after in zip_longest(parts, parts[1:]):
            rest = len(self.models) - done - len(part)
            if after is not None and len(part[0]) == 1 and bool((after[0] == after[0][0]).all()):
                rows.append(torch.stack([*part[:1] * done, *part, *[after[0][:1]] * rest]))
            else:
                rows.append(torch.stack([*part[:1] * done, *part, *part[-1:] * rest]))
            done += len(part)
        return torch.cat(rows, dim=1)

    def weights(self) -> list[tuple[Tensor, Tensor]]:
        """Return `merged` with weights (R, n), one row per model in `moves`."""
        counts = [len(models) for models in self.models]
        parts = [(count, len([*same])) for count, same in groupby(counts)]
        total, offsets = sum(count for count, _ in parts), list[int]()
        for i, (_, times) in enumerate(parts):
            offsets += times * [sum(count for count, _ in parts[:i])]
        rows = list[tuple[Tensor, Tensor]]()
        for (clients, weights), offset in zip(self.merged, offsets, strict=False):
            whole = weights.new_zeros(total, len(clients))
            whole[offset : offset + len(weights)] = weights
            rows.append((clients, whole))
        return rows
