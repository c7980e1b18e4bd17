"""The span and joint attacks on the recorded rounds of a trace, which test each record for every client."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from shoal.attacks import Candidates, Knowledge, ModelJoint, ModelSpan, OwnedRecords, UpdateJoint, UpdateSpan
from shoal.attacks.updates.update_scores import NOBODY
from shoal.audit.update_audit import ScoredUpdates
from shoal.core.errors import InputError, require
from shoal.core.formats import one_line
from shoal.data import GroupedExamples
from shoal.engine import Engine, RoundUpdates
from shoal.metrics.intervals import Bools, Floats, Ints
from shoal.replay.first_rounds import MAX_BYTES, ROUNDS
from shoal.replay.span_scores import JOINTS, SPANS, TOO_LARGE, largest

_Places = tuple[slice | Ints, ...]

_Scores = tuple[Floats, Floats, Bools]
"""Scores, thresholds and exactness for N clients and M records, (N, M) each; NaN without a score."""


def attacks_on_rounds(
    rounds: Iterable[RoundUpdates], records: OwnedRecords, clients: Ints, engine: Engine, knowledge: Knowledge
) -> tuple[list[ScoredUpdates], dict[str, str]]:
    """Run the span and joint attacks on recorded rounds, and give a reason for each impossible attack.

    Args:
        clients: the ids of the clients, (N,); see `UpdateScores`.
    """
    recorded = _RecordedRounds.of(rounds, records, clients, engine, knowledge)
    scored, omitted = list[ScoredUpdates](), dict[str, str]()
    scores = (recorded.span_models, recorded.span, recorded.joint_models, recorded.joint)
    for attack, score in zip((*SPANS, *JOINTS), scores, strict=True):
        try:
            scored.append(ScoredUpdates(attack.name, attack.title, attack.view, *score()))
        except InputError as error:
            omitted[attack.name] = str(error)
    return scored, omitted


@dataclass(frozen=True, eq=False)
class _RecordedRounds:
    """Recorded rounds and the records to attack with them.

    The attacker knows every second non-member; these records set thresholds and have no score (NaN). Without noise, the
    span attacks read the first `ROUNDS` updates of each client, or the first changes of the models.

    Args:
        kept: the rounds whose updates fit into memory.
        models: the models before each of the first consecutive rounds, (K, P) each.
        first: the number of the first round in ``models``.
        records, clients, engine, knowledge: see `attacks_on_rounds`.
    """

    kept: Sequence[RoundUpdates]
    models: Sequence[Tensor]
    first: int
    records: OwnedRecords
    clients: Ints
    engine: Engine
    knowledge: Knowledge
    __repr__ = one_line

    @staticmethod
    def of(
        rounds: Iterable[RoundUpdates], records: OwnedRecords, clients: Ints, engine: Engine, knowledge: Knowledge
    ) -> "_RecordedRounds":
        """Read the rounds."""
        room, first = MAX_BYTES, 1
        kept, models = list[RoundUpdates](), list[Tensor]()
        for updates in rounds:
            first = updates.round if not models else first
            if updates.round == first + len(models) and (not models or updates.models.shape == models[0].shape):
                models.append(updates.models)
            room -= 4 * updates.updates.numel()
            if room >= 0:
                kept.append(updates)
        return _RecordedRounds(kept, models, first, records, clients, engine, knowledge)

    def span_models(self) -> _Scores:
        """Return the span attack on the changes of the models."""
        asked = self._candidates(self.records.client[self._asked], self._asked)
        moves = self._moving[: None if self.knowledge.noisy else ROUNDS + 1]
        scores = ModelSpan().score(torch.stack([*moves]), asked, self.engine, self.knowledge, self.first)
        found, columns = largest(scores, asked), (slice(None), self._asked.numpy())
        return self._table(columns, found.score, found.threshold, found.exact)

    def span(self) -> _Scores:
        """Return the span attack on the clients' updates."""
        early = self.kept if self.knowledge.noisy else _first_of_clients(self.kept)
        require(bool(early), TOO_LARGE)
        senders = torch.cat([updates.clients for updates in early]).unique().numpy()
        asked = self._candidates(self.records.client[self._asked], self._asked)
        found = UpdateSpan().score(early, asked, self.engine, self.knowledge)
        places = np.ix_(np.searchsorted(self.clients, senders), self._asked.numpy())
        return self._table(places, found.score, found.threshold, found.exact[:, None])

    def joint_models(self) -> _Scores:
        """Return the joint attack on the changes of the models, which decides whether any client trained on a record.

        The attack assigns each non-member to a client of its group, and assumes that updates are weighted by numbers of
        examples.
        """
        owner, group = self.records.client.clone(), self.records.group
        for number in group.unique().tolist():
            clients = owner[(owner != NOBODY) & (group == number)].unique()
            free = torch.nonzero((owner == NOBODY) & (group == number)).flatten()
            if len(clients):
                owner[free] = clients[torch.arange(len(free)) % len(clients)]
        places = self._asked[owner[self._asked] != NOBODY]
        moves, models = self._moving, len(self.models[0])
        merged = [_merged(each, self._sizes, models) for each in self.kept if each.round >= self.first]
        rounds = min(len(merged), len(moves) - 1)
        found = ModelJoint().score(
            torch.stack([*moves[: rounds + 1]]), merged[:rounds], self._candidates(owner[places], places), self.engine,
            self.knowledge, self.first,
        )  # fmt: skip
        return self._table((slice(None), places.numpy()), *found, np.False_)

    def joint(self) -> _Scores:
        """Return the joint attack on the clients' updates; a client's list has the client's records and the
        non-members.
        """
        require(bool(self.kept), TOO_LARGE)
        owner = self.records.client[self._asked]
        lists = [self._asked[(owner == client) | (owner == NOBODY)] for client in self._sizes]
        places, counts = torch.cat(lists), torch.tensor([*map(len, lists)])
        client = torch.tensor([*self._sizes]).repeat_interleave(counts)
        found = UpdateJoint().score(self.kept, self._candidates(client, places), self.engine, self.knowledge)
        return self._table((np.searchsorted(self.clients, client.numpy()), places.numpy()), *found, np.False_)

    @cached_property
    def _known(self) -> Tensor:
        """The non-members that the attacker knows."""
        records, nobody = self.records, torch.nonzero(self.records.client == NOBODY).flatten()
        kind = records.group[nobody] * (int(records.label.max()) + 1) + records.label[nobody]
        return nobody[torch.argsort(kind, stable=True)[1::2]]

    @cached_property
    def _asked(self) -> Tensor:
        """The other records."""
        return torch.nonzero(~torch.isin(torch.arange(len(self.records)), self._known)).flatten()

    @cached_property
    def _sizes(self) -> dict[int, int]:
        """The number of each client's records, by its id."""
        ids, counts = self.records.client[self.records.client != NOBODY].unique(return_counts=True)
        return dict(zip(ids.tolist(), counts.tolist(), strict=True))

    @property
    def _moving(self) -> Sequence[Tensor]:
        require(len(self.models) > 1, "the span and joint attacks need the models of at least two consecutive rounds")
        return self.models

    def _candidates(self, client: Tensor, places: Tensor) -> Candidates:
        """Return the records at ``places`` as candidates of the clients ``client``."""
        records = self.records
        x, y, group = (
            [of[part.to(of.device)] for part in (places, self._known)] for of in (records.x, records.y, records.group)
        )
        known = GroupedExamples(x[1], y[1], group[1])
        examples = torch.tensor([self._sizes.get(one, 0) for one in client.tolist()])
        return Candidates.of_groups(x[0], y[0].cpu(), group[0], known, client=client, examples=examples)

    def _table(self, places: _Places, score: Floats, threshold: Floats, exact: Bools | np.bool) -> _Scores:
        whole = np.full((2, len(self.clients), len(self.records)), np.nan)
        inside = np.zeros(whole.shape[1:], dtype=np.bool_)
        for table, values in ((whole[0], score), (whole[1], threshold), (inside, exact)):
            table[places] = values
        return whole[0], whole[1], inside


def _merged(updates: RoundUpdates, sizes: Mapping[int, int], models: int) -> tuple[Tensor, Tensor]:
    """Return a round's clients, and their weights (K, n) by numbers of examples."""
    examples = torch.tensor([float(sizes.get(client, 0)) for client in updates.clients.tolist()])
    weights = examples * (updates.assignment == torch.arange(models)[:, None])
    return updates.clients, weights / weights.sum(dim=1, keepdim=True).clamp(min=1)


def _first_of_clients(rounds: Sequence[RoundUpdates]) -> list[RoundUpdates]:
    """Return the first `ROUNDS` updates of each client."""
    times, first = Counter[int](), list[RoundUpdates]()
    for updates in rounds:
        times.update(updates.clients.tolist())
        early = torch.tensor([times[client] <= ROUNDS for client in updates.clients.tolist()], dtype=torch.bool)
        if bool(early.any()):
            of_early = {name: getattr(updates, name)[early] for name in ("clients", "assignment", "updates")}
            first.append(replace(updates, **of_early))
    return first
