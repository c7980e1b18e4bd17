"""Simulated updates of an attacker, and features of updates.

Features are absolute changes of weights; biases are not used. A convolution's weight (O, I, H, W) has one feature per
kernel: the largest change. A convolution with more than 5,000 kernels has no features. A matrix (O, I) with at most
5,000 entries has one feature per entry. A larger matrix has one feature per row (the layer's output): the largest
change. The published code uses columns (the layer's inputs) instead.

Source: Kim et al., RAID 2023, Algorithm 3, lines 10 to 17; features: Melis et al. 2019, arXiv:1805.04049, and its
published code (`collect_grads`).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.data import Federation, Shards
from shoal.engine import Engine, LocalSGD
from shoal.property.property_federation import schedule_of

MAX_PER_WEIGHT = 5_000
"""The largest number of features per weight tensor."""


@dataclass(frozen=True, eq=False)
class Auxiliary:
    """The attacker's examples for simulating updates.

    Args:
        with_property: the indices of the examples with the property, int64.
        without_property: the indices of the examples without the property, int64.
    """

    x: Tensor
    y: Tensor
    with_property: Tensor
    without_property: Tensor

    def matched(self) -> "Auxiliary":
        """Subsample the examples to equal numbers with and without the property for every label.

        Equal numbers prevent a classifier from learning the labels instead of the property.
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
    def from_attacker(federation: Federation) -> "Auxiliary":
        """Return the attacker's training examples, as in the paper."""
        clients, schedule = federation.clients, schedule_of(federation)
        rows = clients.indices_of(int(torch.nonzero(federation.ids == schedule.attacker)))
        holds = schedule.has_property[rows]
        return Auxiliary(clients.x, clients.y, rows[holds], rows[~holds])

    @staticmethod
    def from_attacker_and_test(federation: Federation) -> "Auxiliary":
        """Return the attacker's examples with the property, and all test examples, as in the published codes."""
        training, test = Auxiliary.from_attacker(federation), federation.test
        held, has_property = training.with_property.to(training.y.device), schedule_of(federation).test_has_property
        rows = len(held) + torch.arange(len(test))
        return Auxiliary(
            x=torch.cat([training.x[held], test.x]),
            y=torch.cat([training.y[held], test.y]),
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
    """Return the updates (n, P) of n simulated clients that start from ``model`` (P,).

    Args:
        model: the initial weights, (P,).
        property_fractions: each simulated client's fraction of examples with the property, n values. A client with a
            positive fraction has at least one example with the property.
        size: the number of examples per simulated client, limited by the number of examples in ``auxiliary``.
    """
    generator = stream("examples").generator()
    rows = []
    for fraction in property_fractions:
        held = min(max(round(fraction * size), int(fraction > 0)), len(auxiliary.with_property))
        rest = min(size - held, len(auxiliary.without_property)) if fraction < 1 else 0
        for kind, count in ((auxiliary.with_property, held), (auxiliary.without_property, rest)):
            # A sample of none must not advance the generator: the samples after it would change.
            order = torch.randperm(len(kind), generator=generator) if count else torch.arange(0)
            rows.append(kind[order[:count]])
    sizes = torch.tensor([len(drawn) for drawn in rows]).reshape(-1, 2).sum(dim=1)
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
    """Simulate aggregated updates (2 * count, P), the first half with the property and the second half without.

    An aggregated update is the mean of ``size`` local updates. An aggregated update with the property contains exactly
    one local update with the property.

    Args:
        with_property: local updates on examples with the property, (n, P).
        without_property: local updates on examples without the property, (m, P) with m >= ``size``.
        size: the number of local updates per aggregated update.
        count: the number of aggregated updates in each half.
    """
    generator = stream.generator()
    held = len(with_property)
    weights = torch.zeros(2 * count, held + len(without_property))
    for a in range(2 * count):
        drawn = torch.randperm(len(without_property), generator=generator)[: size - (a < count)]
        weights[a, held + drawn] = 1 / size
        if a < count:
            weights[a, a % held] = 1 / size
    return weights[:, :held] @ with_property + weights[:, held:] @ without_property


def extract_features(layout: Layout, updates: Tensor) -> Tensor:
    """Return features (u, F) float16 of updates (u, P), scaled to an L2 norm of 1 unless all features are 0.

    Example:
        >>> import torch
        >>> from shoal.property import extract_features
        >>> from shoal.core.layout import Layout
        >>> layout = Layout.from_tensors({"w": torch.zeros(2, 3), "b": torch.zeros(2)}, {})
        >>> extract_features(layout, torch.tensor([[3.0, 0, 0, 0, -4.0, 0, 9, 9]]))
        tensor([[0.6001, 0.0000, 0.0000, 0.0000, 0.7998, 0.0000]], dtype=torch.float16)
    """
    parts = []
    for slot in layout.slots:
        if slot.start >= layout.trainable or len(slot.shape) < 2:
            continue
        view = slot.view(updates).abs()
        if len(slot.shape) > 2:
            if slot.shape[0] * slot.shape[1] > MAX_PER_WEIGHT:
                continue
            view = view.flatten(3).amax(dim=3)
        elif slot.size > MAX_PER_WEIGHT:
            view = view.amax(dim=2)
        parts.append(view.flatten(1))
    features = torch.cat(parts, dim=1).float() if parts else updates.new_zeros(len(updates), 0)
    return torch.nn.functional.normalize(features, dim=1).half().cpu()
