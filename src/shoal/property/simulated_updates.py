"""Simulated updates: local and aggregated updates that a client computes on examples of its own.

Source: Kim et al., RAID 2023, Algorithm 3, lines 10 to 17.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.data.shards import Shards
from shoal.engine import Engine, LocalSGD
from shoal.property.property_schedule import PropertySchedule


def schedule_of(federation: Federation) -> PropertySchedule:
    """The federation's property schedule.

    Raises:
        InputError: it has none.
    """
    if federation.property_schedule is None:
        raise InputError(
            "a property attack needs a federation in which a client holds a property (Federation.property_schedule)"
        )
    return federation.property_schedule


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """The examples that the attacker simulates updates on.

    Args:
        x: (M, ...).
        y: (M,) int64.
        with_property: rows of x and y with the property.
        without_property: rows without it.
    """

    x: Tensor
    y: Tensor
    with_property: Tensor
    without_property: Tensor

    def matched(self) -> "Auxiliary":
        """As many rows of each label with the property as without it: the smaller of the two numbers.

        Otherwise a classifier of simulated updates may learn the labels instead of the property.
        """
        labels = self.y.cpu()
        with_property, without_property = [self.with_property[:0]], [self.without_property[:0]]
        for label in labels[self.with_property].unique():
            pair = [rows[labels[rows] == label] for rows in (self.with_property, self.without_property)]
            count = min(map(len, pair))
            with_property.append(pair[0][:count])
            without_property.append(pair[1][:count])
        return replace(self, with_property=torch.cat(with_property), without_property=torch.cat(without_property))

    @staticmethod
    def of_attacker(federation: Federation) -> "Auxiliary":
        """The attacker's training examples (the paper)."""
        clients, schedule = federation.clients, schedule_of(federation)
        rows = clients.owned(int(torch.nonzero(federation.ids == schedule.attacker)))
        holds = schedule.has_property[rows]
        return Auxiliary(clients.x, clients.y, rows[holds], rows[~holds])

    @staticmethod
    def of_attacker_and_test(federation: Federation) -> "Auxiliary":
        """The attacker's examples with the property, and all test examples (the published codes)."""
        own, test = Auxiliary.of_attacker(federation), federation.test
        held, has_property = own.with_property.to(own.y.device), schedule_of(federation).test_has_property
        rows = len(held) + torch.arange(len(test))
        return Auxiliary(
            x=torch.cat([own.x[held], test.x]),
            y=torch.cat([own.y[held], test.y]),
            with_property=torch.cat([torch.arange(len(held)), rows[has_property]]),
            without_property=rows[~has_property],
        )


def local_updates(
    model: Tensor,
    auxiliary: Auxiliary,
    property_fractions: list[float],
    *,
    size: int,
    local: LocalSGD,
    engine: Engine,
    stream: Stream,
) -> Tensor:
    """The updates (n, P) of n simulated clients that start from ``model`` (P,).

    However many aggregated updates contain a local update, it is computed once, together with the others.

    Args:
        auxiliary: the examples to sample from, without replacement for each client.
        property_fractions: n, the fraction of each client's examples that has the property; if it is above 0, at least
            one example has.
        size: examples per client; fewer where ``auxiliary`` has fewer.
    """
    generator = stream("examples").generator()
    rows = []
    for fraction in property_fractions:
        held = min(max(round(fraction * size), int(fraction > 0)), len(auxiliary.with_property))
        others = min(size - held, len(auxiliary.without_property)) if fraction < 1 else 0
        for kind, count in ((auxiliary.with_property, held), (auxiliary.without_property, others)):
            # A sample of none must not advance the generator: the samples after it would change.
            order = torch.randperm(len(kind), generator=generator) if count else torch.arange(0)
            rows.append(kind[order[:count]])
    sizes = torch.tensor([len(each) for each in rows]).reshape(-1, 2).sum(dim=1)
    shards = Shards.from_indices(auxiliary.x, auxiliary.y, torch.cat(rows), sizes)
    clients = torch.arange(len(property_fractions))
    randomness = local.randomness(shards, clients, stream("batches"))
    updates = torch.empty(len(clients), len(model))
    for owners, ends in engine.train(model[None], torch.zeros_like(clients), shards, randomness, local):
        updates[owners] = ends.cpu() - model
    return updates


def aggregated_updates(
    with_property: Tensor, without_property: Tensor, size: int, count: int, stream: Stream
) -> Tensor:
    """Simulated aggregated updates (2 * count, P): ``count`` with the property, then as many without it.

    Each is the mean of ``size`` local updates; in each of the first half, one of these has the property.

    Args:
        with_property: (n, P), local updates on examples with the property.
        without_property: (m, P), local updates on examples without it, m >= ``size``.
    """
    generator = stream.generator()
    held = len(with_property)
    weights = torch.zeros(2 * count, held + len(without_property))
    for a in range(2 * count):
        others = size - (a < count)
        weights[a, held + torch.randperm(len(without_property), generator=generator)[:others]] = 1 / size
        if a < count:
            weights[a, a % held] = 1 / size
    return weights[:, :held] @ with_property + weights[:, held:] @ without_property
