"""Deals a set out to a federation in which one client holds a property and another looks for it.

Source: Kim et al., RAID 2023, section 4.1.1; the balanced Dirichlet draw is Wang et al. 2020, arXiv:2002.06440.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.core.settings import OpenFraction, Positive, settings
from shoal.data.datasets import LabelledDataset
from shoal.data.federation import Federation, Preferences
from shoal.data.partition import Partition, Shifter, shuffled
from shoal.data.property_schedule import PropertySchedule
from shoal.data.shards import Shards
from shoal.data.shifts import Group

ATTACKER, VICTIM = 0, 1
"""Ids of the two clients; any would do, since clients are dealt out at random."""

_ATTEMPTS = 1_000


@settings
class PropertyPartition:
    """How examples with and without a property are dealt out.

    The training examples are ``clients * examples_per_client``, drawn as for any federation. Those with the property go
    to the attacker and the victim, those without to all clients, skewed by label where ``dirichlet_alpha`` says so.

    Args:
        partition: how many examples go where.
        attacker_share: of the property's training examples; the victim has the rest (the paper: half; its authors'
            code: 0.3).
        period: rounds from one in which the victim trains on the property to the next.
        least: examples that each client needs of each kind it trains on, a batch.

    Raises:
        InputError: fewer than three clients, or a value outside its range.
    """

    partition: Partition
    attacker_share: OpenFraction = 0.5
    period: Annotated[int, Field(ge=2, strict=True)] = 5
    least: Positive = 32

    def __post_init__(self) -> None:
        require(
            self.partition.clients >= 3,
            "a property attack needs an attacker, a victim and somebody else, so 'data.clients' must be at least 3; "
            f"got {self.partition.clients}",
        )


@dataclass(frozen=True, eq=False)
class PartitionIndices:
    """Rows of a set: of each client, of what each keeps out of training, of the shadow set and of the test set."""

    clients: list[Tensor]
    holdout: Tensor
    shadow: Tensor
    test: Tensor


def draw_property_partition(given: LabelledDataset, plan: PropertyPartition, stream: Stream) -> PartitionIndices:
    """Which examples go where.

    Raises:
        InputError: too few examples, no property, a property that nobody or everybody holds, fewer examples with it
            than a batch, or label skew under which a client gets no batch.
    """
    holds = _held(given)
    split = plan.partition
    asked = split.clients * (split.examples_per_client + split.holdout_examples)
    asked += split.shadow_examples + split.test_examples
    require(
        asked <= len(holds),
        f"'data' asks for {asked:,} examples ({split.clients} clients x "
        f"{split.examples_per_client + split.holdout_examples} + {split.shadow_examples:,} shadow + "
        f"{split.test_examples:,} test), but {given.name} has {len(holds):,}",
    )
    draw = stream("split").numpy()
    order = shuffled(given, draw)
    cuts = np.cumsum([split.clients * split.examples_per_client, split.clients * split.holdout_examples])
    training, holdout, rest = np.split(order, cuts)
    held, others = training[holds.numpy()[training]], training[~holds.numpy()[training]]
    mine = round(plan.attacker_share * len(held))
    for who, count in (("attacker", mine), ("victim", len(held) - mine)):
        require(
            count >= plan.least,
            f"the {who} gets {count} training examples with the property, fewer than a batch of {plan.least}; raise "
            "'data.examples_per_client', lower 'local.batch_size', or mind 'property_attack.attacker_share'",
        )
    labels = given.labels.numpy()[others]
    owners = _owners(labels, plan, stream("skew").numpy())
    clients = [others[owners == client] for client in range(split.clients)]
    clients[ATTACKER] = np.concatenate([held[:mine], clients[ATTACKER]])
    clients[VICTIM] = np.concatenate([held[mine:], clients[VICTIM]])
    return PartitionIndices(
        clients=[torch.from_numpy(rows) for rows in clients],
        holdout=torch.from_numpy(holdout),
        shadow=torch.from_numpy(rest[: split.shadow_examples]),
        test=torch.from_numpy(order[len(order) - split.test_examples :]),
    )


def partition_by_property(
    given: LabelledDataset, plan: PropertyPartition, preferences: Preferences, stream: Stream
) -> Federation:
    """The federation that ``plan`` makes of ``given``; raises as `draw_property_partition`."""
    return federation_of(given, plan, draw_property_partition(given, plan, stream), preferences, stream)


def federation_of(
    given: LabelledDataset, plan: PropertyPartition, dealt: PartitionIndices, preferences: Preferences, stream: Stream
) -> Federation:
    """The federation of ``given`` in which clients, shadow set and test set have the examples that ``dealt`` says."""
    rows = torch.cat(dealt.clients)
    count = plan.partition.clients
    holds = _held(given)
    everybody = Group("all", 1.0)
    shifter = Shifter(given, (everybody,), stream)
    kept = torch.full((count,), plan.partition.holdout_examples)
    return Federation(
        clients=Shards.contiguous(
            shifter.pixels(rows, torch.zeros_like(rows)),
            given.labels[rows],
            torch.tensor([len(each) for each in dealt.clients]),
        ),
        holdout=Shards.contiguous(
            shifter.pixels(dealt.holdout, torch.zeros_like(dealt.holdout)), given.labels[dealt.holdout], kept
        ),
        shadow=shifter.examples(dealt.shadow, [len(dealt.shadow)]),
        test=shifter.examples(dealt.test, [len(dealt.test)]),
        ids=torch.arange(count),
        group=torch.zeros(count, dtype=torch.int64),
        groups=(everybody.name,),
        preferences=preferences,
        classes=given.classes,
        property_schedule=PropertySchedule(
            holds[rows], holds[dealt.test], victim=VICTIM, attacker=ATTACKER, every=plan.period
        ),
    )


def _held(given: LabelledDataset) -> Tensor:
    """Which examples hold the property, if there is something to tell apart."""
    holds = given.holds
    if holds is None:
        raise InputError(
            "'property_attack' needs a task with a property, such as 'data.task' = \"smiling/sunglasses\" of faces; "
            f"the task of {given.name} names none"
        )
    some = int(holds.sum())
    require(
        0 < some < len(holds),
        f"the property is held by {'every one' if some else 'none'} of the {len(holds):,} examples of {given.name}, "
        "so that an AUC is undefined; choose another 'data.task'",
    )
    return holds


def _owners(labels: np.ndarray, plan: PropertyPartition, draw: np.random.Generator) -> np.ndarray:
    """The client of each example without the property: (M,)."""
    clients, alpha = plan.partition.clients, plan.partition.dirichlet_alpha
    require(
        len(labels) >= clients * plan.least,
        f"there are {len(labels):,} training examples without the property, fewer than a batch of {plan.least} for "
        f"each of {clients} clients; raise 'data.examples_per_client' or lower 'local.batch_size'",
    )
    if alpha is None:
        return draw.permutation(np.arange(len(labels)) % clients)
    for _ in range(_ATTEMPTS):
        owners = _skewed(labels, clients, alpha, draw)
        if np.bincount(owners, minlength=clients).min() >= plan.least:
            return owners
    raise InputError(
        f"'data.dirichlet_alpha' = {alpha:g} leaves a client with fewer than {plan.least} of {len(labels):,} examples "
        f"without the property in each of {_ATTEMPTS:,} draws; raise it, or 'data.examples_per_client'"
    )


def _skewed(labels: np.ndarray, clients: int, alpha: float, draw: np.random.Generator) -> np.ndarray:
    """Owners by a Dirichlet draw a class, in which a client that already has its part gets no more."""
    owners = np.zeros(len(labels), dtype=np.int64)
    sizes = np.zeros(clients)
    for label in np.unique(labels):
        rows = draw.permutation(np.flatnonzero(labels == label))
        wants = sizes < len(labels) / clients
        shares = draw.dirichlet(np.full(clients, alpha)) * wants
        if shares.sum() == 0:
            # A small alpha gave everything to clients that have their part.
            shares = wants.astype(np.float64)
        cuts = np.floor(np.cumsum(shares / shares.sum())[:-1] * len(rows)).astype(np.int64)
        owners[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
        sizes = np.bincount(owners[labels <= label], minlength=clients)
    return owners
