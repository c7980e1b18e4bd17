"""Federations in which one client, the victim, holds examples with a property.

Source: Melis, Song, De Cristofaro, Shmatikov 2019, arXiv:1805.04049, section VII; Kim et al., RAID 2023, sections 4 and
4.1.1.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.core.settings import OpenFraction, Positive, settings
from shoal.data import Federation, Group, LabelledDataset, Partition, Preferences, Shards
from shoal.data.partition import (
    DEFAULT_STREAM,
    ClientIndices,
    PartitionIndices,
    disjoint,
    partition_federation,
    shuffle_indices,
)
from shoal.data.preferences import equal_preferences
from shoal.data.shifts import draw_owners

ATTACKER, VICTIM = 0, 1
"""The ids of the attacker and of the victim."""

_ATTEMPTS = 1_000
_GROUPS = (Group("all", 1.0),)


@dataclass(frozen=True, eq=False)
class PropertySchedule:
    """The rounds in which the victim trains on examples with the property.

    Only the victim and the attacker hold training examples with the property. In every ``period``-th round, the victim
    trains only on examples with the property. In all other rounds, the victim trains only on examples without the
    property.

    Args:
        has_property: a mask of the clients' examples that have the property, (M,) bool.
        test_has_property: a mask of the test examples that have the property, (M',) bool.
        period: the interval, in rounds, between rounds with the property.
    """

    has_property: Tensor
    test_has_property: Tensor
    victim: int
    attacker: int
    period: int
    __repr__ = one_line

    def present(self, number: int) -> bool:
        """Return whether the victim trains on examples with the property in round ``number``, counted from 1."""
        return number % self.period == 0

    def in_round(self, clients: Shards, ids: Tensor, number: int) -> Shards:
        """Return the clients' shards for round ``number``, with the victim's examples of the round."""
        indices = [clients.indices_of(i) for i in range(len(clients))]
        for i in torch.nonzero(ids == self.victim).flatten().tolist():
            indices[i] = self._of_victim(indices[i], present=self.present(number))
        sizes = torch.tensor([len(rows) for rows in indices])
        return Shards.from_indices(clients.x, clients.y, torch.cat(indices), sizes)

    def swap_records(self, clients: Shards, ids: Tensor, number: int) -> Shards:
        """Return the victim's shard with the examples that the victim does not train on in round ``number``."""
        owners = torch.nonzero(ids == self.victim).flatten()
        indices = [self._of_victim(clients.indices_of(i), present=not self.present(number)) for i in owners.tolist()]
        sizes = torch.tensor([len(rows) for rows in indices], dtype=torch.int64)
        return Shards.from_indices(clients.x, clients.y, torch.cat([owners[:0], *indices]), sizes)

    def _of_victim(self, indices: Tensor, *, present: bool) -> Tensor:
        return indices[self.has_property[indices] == present]


def schedule_of(federation: Federation) -> PropertySchedule:
    """Return the federation's property schedule.

    Raises:
        InputError: the federation has no property schedule.
    """
    if not isinstance(federation.schedule, PropertySchedule):
        raise InputError("a property attack needs a federation with a property schedule (Federation.schedule)")
    return federation.schedule


@settings
class PropertyPartition:
    """A partition of examples with and without a property.

    The attacker and the victim receive the training examples with the property. All clients receive examples without
    the property, with label skew by `Partition.dirichlet_alpha`.

    Args:
        partition: the numbers of clients and examples, and the label skew.
        attacker_share: the attacker's fraction of the training examples with the property; the victim gets the
            remainder (paper: 0.5; authors' code: 0.3).
        period: the interval, in rounds, between rounds with the property.
        min_examples: the smallest number of examples without the property per client, usually the batch size. The
            attacker and the victim also need as many examples with the property.
        victim_labels: the labels of the victim's examples without the property. "natural" labels are drawn without
            label skew (authors' code); "skewed" labels are drawn with label skew, like all other clients' labels.

    Raises:
        InputError: there are fewer than three clients, or a value is outside its allowed range.
    """

    partition: Partition
    attacker_share: OpenFraction = 0.5
    period: Annotated[int, Field(ge=2, strict=True)] = 5
    min_examples: Positive = 32
    victim_labels: Literal["natural", "skewed"] = "natural"

    def __post_init__(self) -> None:
        require(
            self.partition.clients >= 3,
            f"'clients' must be at least 3 for a property attack (got {self.partition.clients})",
        )


def draw_property_partition(dataset: LabelledDataset, plan: PropertyPartition, stream: Stream) -> PartitionIndices:
    """Draw the partition of the examples.

    Raises:
        InputError: there are too few examples, the task has no property, or all or no examples have the property.
    """
    has_property = _has_property(dataset).numpy()
    partition = plan.partition
    partition.check(dataset, _GROUPS)
    order = shuffle_indices(dataset, stream("split").numpy())
    training, *parts = disjoint(partition, order, _GROUPS)
    with_property, without = training[has_property[training]], training[~has_property[training]]
    cut = round(plan.attacker_share * len(with_property))
    for name, count in (("attacker", cut), ("victim", len(with_property) - cut)):
        require(
            count >= plan.min_examples,
            f"the {name} needs at least {plan.min_examples} training examples with the property (got {count}); raise "
            "'examples_per_client', lower the batch size, or change 'attacker_share'",
        )
    owners = _owners_without_property(dataset.labels.numpy()[without], len(with_property) - cut, plan, stream)
    clients = [without[owners == client] for client in range(partition.clients)]
    clients[ATTACKER] = np.concatenate([with_property[:cut], clients[ATTACKER]])
    clients[VICTIM] = np.concatenate([with_property[cut:], clients[VICTIM]])
    holdout, shadow, test = map(torch.from_numpy, parts)
    training_indices = ClientIndices.concatenate([torch.from_numpy(indices) for indices in clients])
    return PartitionIndices(training_indices, ClientIndices.equal(holdout, partition.clients), shadow, test)


def partition_by_property(
    dataset: LabelledDataset,
    plan: PropertyPartition,
    preferences: Preferences | None = None,
    stream: Stream = DEFAULT_STREAM,
) -> Federation:
    """Create a federation with one group from a data set partitioned by property.

    Example:
        >>> import shoal
        >>> plan = shoal.PropertyPartition(shoal.Partition(4, 40, test_examples=40), min_examples=4, period=3)
        >>> digits = shoal.load_dataset("digits", task="class/thick")
        >>> preferences = shoal.draw_preferences(4, (0.5, 0.8), 0.0, shoal.Stream(0))
        >>> federation = shoal.partition_by_property(digits, plan, preferences, shoal.Stream(0))
        >>> victim, present = federation.schedule.victim, shoal.PropertySchedule.present
        >>> [present(federation.schedule, number) for number in (1, 2, 3)]
        [False, False, True]
        >>> [int(federation.clients_in_round(number).sizes[victim]) for number in (1, 2, 3)]
        [31, 31, 17]
    """
    if preferences is None:
        preferences = equal_preferences(plan.partition.clients)
    return partitioned_federation(dataset, plan, draw_property_partition(dataset, plan, stream), preferences, stream)


def partitioned_federation(
    dataset: LabelledDataset, plan: PropertyPartition, drawn: PartitionIndices, preferences: Preferences, stream: Stream
) -> Federation:
    """Create a data set's federation from a partition by `draw_property_partition`."""
    has_property = _has_property(dataset)
    of_clients, of_test = has_property[drawn.clients.indices], has_property[drawn.test]
    schedule = PropertySchedule(of_clients, of_test, victim=VICTIM, attacker=ATTACKER, period=plan.period)
    federation = partition_federation(dataset, _GROUPS, drawn, preferences, stream)
    return replace(federation, schedule=schedule)


def _has_property(dataset: LabelledDataset) -> Tensor:
    """Return a mask (M,) of the examples with the property; some but not all examples must have the property."""
    has_property = dataset.has_property
    if has_property is None:
        raise InputError(
            f"the 'task' of {dataset.name} must name a property for a property attack, such as "
            '"smiling/sunglasses" of lfw'
        )
    count = int(has_property.sum())
    require(
        0 < count < len(has_property),
        f"some but not all examples of {dataset.name} must have the property (got {count:,} of {len(has_property):,}); "
        "choose another 'task'",
    )
    return has_property


def _owners_without_property(labels: np.ndarray, of_victim: int, plan: PropertyPartition, stream: Stream) -> np.ndarray:
    """Draw the client of each example without the property, (M,), from the ``labels``. The victim has ``of_victim``
    examples with the property.
    """
    clients, alpha = plan.partition.clients, plan.partition.dirichlet_alpha
    require(
        len(labels) >= clients * plan.min_examples,
        f"{clients} clients need at least {clients * plan.min_examples:,} training examples without the property in "
        f"total (got {len(labels):,}); raise 'examples_per_client' or lower the batch size",
    )
    skew = stream("skew").numpy()
    if alpha is None:
        return skew.permutation(np.arange(len(labels)) % clients)
    owners, skewed, left = np.full(len(labels), VICTIM), clients, np.arange(len(labels))
    if plan.victim_labels == "natural":
        # Enough are left for the other clients to have a batch each.
        count = min(max(of_victim, plan.min_examples), len(labels) - (clients - 1) * plan.min_examples)
        skewed, left = clients - 1, stream("victim").numpy().permutation(len(labels))[count:]
    for _ in range(_ATTEMPTS):
        drawn = draw_owners(labels[left], skewed, alpha, skew, balanced=True)
        if np.bincount(drawn, minlength=skewed).min() >= plan.min_examples:
            # A natural victim is not among the skewed clients.
            owners[left] = drawn if skewed == clients else drawn + (drawn >= VICTIM)
            return owners
    raise InputError(
        f"'dirichlet_alpha' left a client fewer than {plan.min_examples} examples without the property in "
        f"{_ATTEMPTS:,} draws (got {alpha:g}); raise 'dirichlet_alpha' or 'examples_per_client'"
    )
