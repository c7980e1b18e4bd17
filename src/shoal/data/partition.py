"""Partition of a data set: every example goes to one client, to the shadow set, to the test set, or to no set.

With ``reuse_images`` an image may go to one client of each group. The clients, the shadow set and the test set never
share an image.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Flag, Positive, PositiveFloat, settings
from shoal.data.datasets import ImageDataset, LabelledDataset, Standardizer, TableDataset
from shoal.data.federation import Federation
from shoal.data.names import numbered_name, official_example, require_unambiguous
from shoal.data.preferences import Preferences, equal_preferences
from shoal.data.shards import GroupedExamples, Shards
from shoal.data.shifts import Group, shift_inputs, shift_labels, skew_labels

DEFAULT_STREAM = Stream(0, ("data",))
"""The random data stream of `shoal run` with seed 0."""


@settings
class Partition:
    """The numbers of examples of clients, shadow set and test set.

    The test set gets official test examples first, and the clients get official training examples first.

    Args:
        clients: the number of clients.
        examples_per_client: the number of training examples per client; with ``dirichlet_alpha``, the mean number.
        holdout_examples: the number of additional examples per client, not used for training.
        shadow_examples: the number of examples in the server's shadow set, divided among the groups by
            ``shadow_share``.
        test_examples: the number of test examples, divided equally among all groups, including groups without
            clients.
        dirichlet_alpha: the concentration of label skew. Each class is divided among the clients in proportions from
            Dirichlet(dirichlet_alpha). By default, clients have equal numbers of examples and no label skew.
        reuse_images: whether all groups get the same images, as in IFCA's rotated MNIST. The clients of a group get
            disjoint images, and all groups have the same test images. This key excludes ``dirichlet_alpha``.

    Raises:
        InputError: a value is outside its allowed range, or ``reuse_images`` is combined with ``dirichlet_alpha``.
    """

    clients: Positive
    examples_per_client: Positive
    _: KW_ONLY
    holdout_examples: Count = 0
    shadow_examples: Count = 0
    test_examples: Positive
    dirichlet_alpha: PositiveFloat | None = None
    reuse_images: Flag = False

    def __post_init__(self) -> None:
        require(
            not self.reuse_images or self.dirichlet_alpha is None,
            "'reuse_images' and 'dirichlet_alpha' are not allowed together; remove one of the two keys",
        )

    def check(self, dataset: LabelledDataset, groups: Sequence[Group]) -> None:
        """Check the partition against a data set, without partitioning it.

        Raises:
            InputError: there are too few examples; the shares do not sum to 1; a group has less than one client; a
                group shifts images or labels that the data set does not have; or one of several groups is named
                ``all``.
        """
        require_unambiguous([group.name for group in groups if group.share > 0])
        for group in groups:
            require(
                isinstance(dataset, ImageDataset) or (group.rotation is None and group.brightness is None),
                f"group '{group.name}' rotates or brightens images, but {dataset.name} has {dataset.kind}; remove "
                "'rotation' and 'brightness'",
            )
            require(
                (group.label_shift or 0) < dataset.classes,
                f"'label_shift' of group '{group.name}' must be below {dataset.classes}, the classes of {dataset.name} "
                f"(got {group.label_shift})",
            )
        shares = [group.share for group in groups]
        spelled = " + ".join(f"{group.share:g} ({group.name})" for group in groups)
        require(any(share > 0 for share in shares), f"at least one group's share must be above 0 (got {spelled})")
        total = sum(shares)
        require(abs(total - 1) < 1e-6, f"the groups' shares must sum to 1 (got {spelled} = {total:g})")
        anywhere = any(group.shadow_weight > 0 for group in groups)
        require(anywhere, "'shadow_share' must be above 0 for at least one group (got 0 for all)")
        counts = apportion(shares, self.clients)
        for group, count in zip(groups, counts, strict=True):
            require(
                count > 0 or group.share == 0,
                f"group '{group.name}' must have at least one client (got {group.share:g} of {self.clients} clients); "
                "raise 'share' or 'clients'",
            )
        per_client = self.examples_per_client + self.holdout_examples
        clients, test, where = self.clients, self.test_examples, ""
        if self.reuse_images:
            clients, test, where = max(counts), math.ceil(test / len(groups)), " in the largest group"
        needed = clients * per_client + self.shadow_examples + test
        require(
            needed <= len(dataset.labels),
            f"{dataset.name} must have at least {needed:,} {dataset.kind} ({clients} clients x {per_client} + "
            f"{self.shadow_examples:,} shadow + {test:,} test{where}) (got {len(dataset.labels):,})",
        )


class ClientIndices(NamedTuple):
    """Indices into a data set, ordered by client, and the number of indices per client, (N,) int64."""

    indices: Tensor
    sizes: Tensor

    def by_client(self) -> tuple[Tensor, ...]:
        """Return each client's indices."""
        return self.indices.split(self.sizes.tolist())

    @staticmethod
    def concatenate(by_client: Sequence[Tensor]) -> "ClientIndices":
        """Concatenate one tensor per client."""
        return ClientIndices(torch.cat([*by_client]), torch.tensor([len(indices) for indices in by_client]))

    @staticmethod
    def equal(indices: Tensor, clients: int) -> "ClientIndices":
        """Split ``indices`` into ``clients`` equal parts."""
        return ClientIndices(indices, torch.full((clients,), len(indices) // clients))


class PartitionIndices(NamedTuple):
    """Indices into a data set for the clients' training examples, hold-outs, shadow set and test set."""

    clients: ClientIndices
    holdout: ClientIndices
    shadow: Tensor
    test: Tensor


def partition_dataset(
    dataset: LabelledDataset,
    partition: Partition,
    groups: Sequence[Group],
    preferences: Preferences | None = None,
    stream: Stream = DEFAULT_STREAM,
) -> Federation:
    """Partition a data set into a federation, shift images and labels by group, and standardise columns.

    Label skew applies to the labels before the shift.

    Args:
        dataset: the examples.
        partition: the numbers of examples.
        groups: the groups of clients.
        preferences: the clients' preferences, or None for a threshold of 0.65 and beta 0.5.
        stream: the random stream of the partition and the shifts; by default the stream of `shoal run` with seed 0.

    Raises:
        InputError: `Partition.check` fails.

    Example:
        >>> import shoal
        >>> groups = [shoal.Group("upright", 0.2), shoal.Group("turned", 0.8, rotation=(180, 180))]
        >>> plan = shoal.Partition(10, 20, test_examples=100)
        >>> federation = shoal.partition_dataset(shoal.load_dataset("digits"), plan, groups)
        >>> federation.groups, federation.group.bincount().tolist(), tuple(federation.clients.x.shape)
        (('upright', 'turned'), [2, 8], (200, 1, 8, 8))
    """
    partition.check(dataset, groups)
    if preferences is None:
        preferences = equal_preferences(partition.clients)
    rng = stream("split").numpy()
    order = shuffle_indices(dataset, rng)
    parts = _reuse(partition, order, groups, rng) if partition.reuse_images else disjoint(partition, order, groups)
    training, holdout, shadow, test = map(torch.from_numpy, parts)
    if partition.dirichlet_alpha is None:
        clients, held_out = (ClientIndices.equal(indices, partition.clients) for indices in (training, holdout))
    else:
        clients, held_out = map(ClientIndices.concatenate, _skew(dataset, partition, training, holdout, stream("skew")))
    return partition_federation(dataset, groups, PartitionIndices(clients, held_out, shadow, test), preferences, stream)


def partition_federation(
    dataset: LabelledDataset,
    groups: Sequence[Group],
    indices: PartitionIndices,
    preferences: Preferences,
    stream: Stream,
) -> Federation:
    """Create a federation from a data set and its drawn partition."""
    training, holdout, shadow, test = indices
    shares, count = [group.share for group in groups], len(training.sizes)
    ids, group = torch.arange(count), _by_group(apportion(shares, count))
    name_of = (dataset.name + "[{}]").format
    if dataset.train_count < len(dataset.labels):
        name_of = partial(official_example, dataset.name, dataset.train_count)
    if isinstance(dataset, TableDataset):
        rows = pd.DataFrame(dataset.rows.double().numpy()).rename(columns=str)
        scale = Standardizer.fit(rows.iloc[training.indices.numpy()])
        dataset = replace(dataset, rows=scale.transform(rows))

    def shards(indices: Tensor, sizes: Tensor) -> Shards:
        owners = torch.repeat_interleave(ids, sizes)
        x = shift_inputs(dataset, indices, groups, group[owners], stream, owners)
        return Shards.from_contiguous(x, shift_labels(dataset, indices, groups, group[owners]), sizes)

    def examples(indices: Tensor, counts: list[int]) -> GroupedExamples:
        group = _by_group(counts)
        x = shift_inputs(dataset, indices, groups, group, stream)
        return GroupedExamples(x, shift_labels(dataset, indices, groups, group), group)

    rows = {"clients": training.indices, "holdout": holdout.indices, "test": test}
    return Federation(
        clients=shards(*training),
        holdout=shards(*holdout),
        shadow=examples(shadow, apportion([group.shadow_weight for group in groups], len(shadow))),
        test=examples(test, _equal_counts(len(test), len(groups))),
        ids=ids,
        group=group,
        groups=tuple(group.name for group in groups),
        preferences=preferences,
        classes=dataset.classes,
        origins={part: partial(numbered_name, name_of, indices) for part, indices in rows.items()},
        own_inputs=any(group.shift_per == "client" and group.share > 0 for group in groups),
    )


def _by_group(counts: list[int]) -> Tensor:
    """Return group numbers: ``counts[0]`` times 0, then ``counts[1]`` times 1, and so on."""
    return torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))


def disjoint(partition: Partition, order: np.ndarray, groups: Sequence[Group]) -> list[np.ndarray]:
    """Split the indices ``order`` into disjoint training, hold-out, shadow and test indices."""
    per_client = [partition.examples_per_client, partition.holdout_examples]
    training, holdout, rest = np.split(order, np.cumsum([partition.clients * count for count in per_client]))
    test = _test_by_group(order[len(order) - partition.test_examples :], groups)
    return [training, holdout, rest[: partition.shadow_examples], test]


def _test_by_group(test: np.ndarray, groups: Sequence[Group]) -> np.ndarray:
    """Order test indices by group, with equal numbers per group.

    Groups without clients get the first indices, so that other groups keep their test examples.
    """
    counts = _equal_counts(len(test), len(groups))
    order = sorted(range(len(groups)), key=lambda g: groups[g].share > 0)
    parts = dict(zip(order, np.split(test, np.cumsum([counts[g] for g in order])[:-1]), strict=True))
    return np.concatenate([parts[g] for g in range(len(groups))])


def _reuse(
    partition: Partition, order: np.ndarray, groups: Sequence[Group], rng: np.random.Generator
) -> list[np.ndarray]:
    """Split like `disjoint`, but use the same images for every group."""
    counts = apportion([group.share for group in groups], partition.clients)
    needed = max(counts) * (partition.examples_per_client + partition.holdout_examples)
    training, holdout = [], []
    # A group without clients takes no permutation, so that the other groups' do not change.
    for count in filter(None, counts):
        shuffled = rng.permutation(order[:needed])
        cut = count * partition.examples_per_client
        training.append(shuffled[:cut])
        holdout.append(shuffled[cut : cut + count * partition.holdout_examples])
    shadow = order[needed : needed + partition.shadow_examples]
    test = [order[len(order) - count :] for count in _equal_counts(partition.test_examples, len(counts))]
    return [np.concatenate(training), np.concatenate(holdout), shadow, np.concatenate(test)]


def _equal_counts(total: int, parts: int) -> list[int]:
    return apportion([1 / parts] * parts, total)


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Return integers in proportion to ``shares`` that sum to ``total`` (largest remainder method)."""
    exact = [share / sum(shares) * total for share in shares]
    # Rounding to nine places keeps 0.29 * 100 = 28.999999999999996 from losing a client.
    floors = [int(round(value, 9)) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (floors[i] - exact[i], i))
    for i in by_remainder[: total - sum(floors)]:
        floors[i] += 1
    return floors


def shuffle_indices(dataset: LabelledDataset, rng: np.random.Generator) -> np.ndarray:
    """Shuffle all indices (M,), with the official training split before the official test split."""
    train = dataset.train_count
    return np.concatenate([rng.permutation(train), train + rng.permutation(len(dataset.labels) - train)])


def _skew(
    dataset: LabelledDataset, partition: Partition, training: Tensor, holdout: Tensor, stream: Stream
) -> tuple[list[Tensor], list[Tensor]]:
    """Split training and hold-out examples across clients, with the same label skew in both.

    Each client holds out the partition's fraction of its examples at random: at least one example, but never all.
    """
    alpha, fraction = partition.dirichlet_alpha, len(holdout) / (len(holdout) + len(training))
    assert alpha is not None
    together = torch.cat([training, holdout])
    owners = skew_labels(dataset.labels[together], partition.clients, alpha, stream)
    sizes = torch.bincount(owners, minlength=partition.clients).tolist()
    by_client = together[torch.argsort(owners, stable=True)].split(sizes)
    if fraction == 0:
        return list(by_client), [indices[:0] for indices in by_client]
    rng, clients, held_out = stream("holdout").numpy(), [], []
    for indices in by_client:
        shuffled = indices[torch.from_numpy(rng.permutation(len(indices)))]
        cut = min(max(1, round(len(indices) * fraction)), len(indices) - 1)
        clients.append(shuffled[cut:])
        held_out.append(shuffled[:cut])
    return clients, held_out
