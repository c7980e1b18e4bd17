"""The first rounds of a run, trained again: what a client and the server see of them, which no file of the run keeps.

A client is sent the models of all clusters in every round; the server also receives each client's update. Both are
collected while a federation trains, so that the attacks on them cost a few rounds of the attacked run, and nothing in
reference federations, which are trained anyway.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby, zip_longest

import torch
from torch import Tensor

from shoal.core.representation import one_line
from shoal.engine import RoundReport, RoundUpdates, State, Training

ROUNDS = 5
"""Rounds, at most, whose moves are kept."""

MAX_BYTES = 1_000_000_000
"""Memory, at most, of the updates that are kept; rounds whose updates do not fit are seen without them."""


@dataclass(eq=False)
class FirstRounds:
    """The moves of the first T rounds of a federation, filled while it trains.

    Args:
        first: the number of the first of them.
        models: (K, P) before the first and after each round, T + 1 of them.
        updates: of each round, as the server received them: after the client's defences. Fewer rounds where their
            updates are large; see `MAX_BYTES`.
        senders: (m,) int64, the ids of the clients that sent an update in these rounds.
        most: T, at most.
        with_updates: whether updates are kept.
    """

    first: int = 1
    models: list[Tensor] = field(default_factory=list)
    updates: list[RoundUpdates] = field(default_factory=list)
    senders: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    most: int = field(default_factory=lambda: ROUNDS)
    with_updates: bool = True
    __repr__ = one_line

    def watched(self, training: Training, state: State, upto: int) -> Iterator[tuple[State, RoundReport]]:
        """`Training.rounds`, whose first rounds are collected; no bit of training depends on it."""
        self.first, last = state.round + 1, min(upto, state.round + self.most)
        self.models.append(state.models.cpu())
        room, ids = MAX_BYTES, training.federation.ids
        while state.round < last:
            room -= 4 * len(training.cohort(state.round + 1)) * training.engine.model.layout.size
            state, report = replace(training, record_every=int(self.with_updates and room >= 0)).round(state)
            self.models.append(state.models.cpu())
            if report.updates is not None:
                self.updates.append(report.updates)
            for local in report.plan.trainings:
                if local.weights is not None:
                    self.senders = torch.cat([self.senders, ids[report.cohort[local.participants()]]]).unique()
            yield state, replace(report, updates=None)
        yield from replace(training, record_every=0).rounds(state, upto)

    def moves(self) -> Tensor:
        """(T + 1, R, P), the models before the first and after each round.

        Where their number changes, those of each number are rows of their own, which rest in other rounds. A single
        model that became several, all the same, moved to them before.
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
