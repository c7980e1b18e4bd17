"""Simulated updates: what a client can make of its own examples that looks like what the server sends.

Source: Kim et al., RAID 2023, Algorithm 3, lines 10 to 17.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.data.property_schedule import PropertySchedule
from shoal.data.shards import Shards
from shoal.engine import Engine, LocalSGD


def schedule_of(federation: Federation) -> PropertySchedule:
    """Who holds what in a federation.

    Raises:
        InputError: nobody.
    """
    if federation.property_schedule is None:
        raise InputError(
            "a property attack needs a federation in which a client holds a property (Federation.property_schedule)"
        )
    return federation.property_schedule


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """The attacker's labelled examples: x (M, ...), y (M,), and the rows with and without the property."""

    x: Tensor
    y: Tensor
    held: Tensor
    others: Tensor

    def matched(self) -> "Auxiliary":
        """The same number of rows of each label with and without the property, as many as there are.

        An attacker whose two kinds differ in their labels learns to tell labels apart.
        """
        labels = self.y.cpu()
        held, others = [self.held[:0]], [self.others[:0]]
        for label in labels[self.held].unique():
            pair = self.held[labels[self.held] == label], self.others[labels[self.others] == label]
            count = min(map(len, pair))
            held.append(pair[0][:count])
            others.append(pair[1][:count])
        return replace(self, held=torch.cat(held), others=torch.cat(others))

    @staticmethod
    def own(federation: Federation, schedule: PropertySchedule) -> "Auxiliary":
        """What the attacker trains on (the paper)."""
        clients = federation.clients
        mine = clients.owned(int(torch.nonzero(federation.ids == schedule.attacker)))
        return Auxiliary(clients.x, clients.y, mine[schedule.has_property[mine]], mine[~schedule.has_property[mine]])

    @staticmethod
    def with_test(federation: Federation, schedule: PropertySchedule) -> "Auxiliary":
        """Its own examples with the property, and the test set's with and without it (the published codes)."""
        own, test = Auxiliary.own(federation, schedule), federation.test
        held = own.held.to(own.y.device)
        rows = len(held) + torch.arange(len(test))
        return Auxiliary(
            x=torch.cat([own.x[held], test.x]),
            y=torch.cat([own.y[held], test.y]),
            held=torch.cat([torch.arange(len(held)), rows[schedule.test_has_property]]),
            others=rows[~schedule.test_has_property],
        )


def local_updates(
    model: Tensor,
    auxiliary: Auxiliary,
    mixes: list[float],
    *,
    size: int,
    local: LocalSGD,
    engine: Engine,
    stream: Stream,
) -> Tensor:
    """What clients would make of ``model`` (P,), each with examples of its own: (n, P).

    All start from the same parameters, so each is trained once, all of them together, however many aggregated updates
    will contain it.

    Args:
        model: (P,).
        auxiliary: where the examples are drawn from.
        mixes: of each of n clients, the share of its examples that hold the property.
        size: examples of a client, fewer where there are not as many.
        local: what a client does.
        engine: computes it.
        stream: of the draws.
    """
    draw = stream("examples").generator()
    rows = []
    for mix in mixes:
        # An update that is said to contain the property contains it.
        held = min(max(round(mix * size), int(mix > 0)), len(auxiliary.held))
        others = min(size - held, len(auxiliary.others)) if mix < 1 else 0
        rows += [_some(auxiliary.held, held, draw), _some(auxiliary.others, others, draw)]
    sizes = torch.tensor([len(each) for each in rows]).reshape(-1, 2).sum(dim=1)
    shards = Shards.from_indices(auxiliary.x, auxiliary.y, torch.cat(rows), sizes)
    clients = torch.arange(len(mixes))
    randomness = local.randomness(shards, clients, stream("batches"))
    updates = torch.empty(len(mixes), len(model))
    for owners, ends in engine.train(model[None], torch.zeros_like(clients), shards, randomness, local):
        updates[owners] = ends.cpu() - model
    return updates


def aggregates(held: Tensor, others: Tensor, members: int, count: int, stream: Stream) -> Tensor:
    """Aggregated updates, ``count`` with the property and then as many without: (2 * count, P).

    Each is the mean of ``members`` local updates. One of those with the property is a client's that has it.

    Args:
        held: (n, P), local updates on examples with the property.
        others: (m, P), local updates on examples without it, at least as many as ``members``.
        members: local updates in an aggregated one.
        count: of each kind.
        stream: of the draws.
    """
    draw = stream.generator()
    weights = torch.zeros(2 * count, len(held) + len(others))
    for a in range(2 * count):
        rest = members - (a < count)
        weights[a, len(held) + torch.randperm(len(others), generator=draw)[:rest]] = 1 / members
        if a < count:
            weights[a, a % len(held)] = 1 / members
    return weights[:, : len(held)] @ held + weights[:, len(held) :] @ others


def _some(rows: Tensor, count: int, draw: torch.Generator) -> Tensor:
    return rows[torch.randperm(len(rows), generator=draw)[:count]] if count else rows[:0]
