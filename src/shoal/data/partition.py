"""Deals a set of images out: every image goes to one client, the shadow set, the test set, or nowhere.

Or, where a plan reuses images, to one client of each group; never to two of those three places.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Flag, Positive, PositiveFloat, settings
from shoal.data.datasets import LabelledDataset, TextDataset
from shoal.data.federation import Examples, Federation, Preferences
from shoal.data.shards import Shards
from shoal.data.shifts import Group


@settings
class Partition:
    """How many images go where.

    Args:
        clients: N.
        examples_per_client: training images of each client; with ``dirichlet_alpha``, their mean.
        shadow_examples: images of the server's shadow set, mixed like the groups' shares.
        test_examples: images held out for measuring, the same number for each group, also for one without clients.
        holdout_examples: further images of each client, kept out of its training.
        dirichlet_alpha: concentration of the label skew over clients; None: equal clients without skew.
        reuse_images: deal the same images out to the clients of each group, in an order of its own, and the same test
            images under each group's shift, as IFCA's rotated MNIST does. Not together with label skew.

    The official test images go to the test set first and the official training images to the clients first;
    the shadow set takes what lies between.
    """

    clients: Positive
    examples_per_client: Positive
    test_examples: Positive
    shadow_examples: Count = 0
    holdout_examples: Count = 0
    dirichlet_alpha: PositiveFloat | None = None
    reuse_images: Flag = False

    def __post_init__(self) -> None:
        require(
            not self.reuse_images or self.dirichlet_alpha is None,
            "'data.reuse_images' does not go together with 'data.dirichlet_alpha', which could give a client an image "
            "twice; leave one of them out",
        )

    def check(self, images: LabelledDataset, groups: Sequence[Group]) -> None:
        """Raise `InputError` for too few images, shares that do not sum to 1, a group without its client, or one that
        shifts texts.
        """
        for group in groups:
            require(
                not isinstance(images, TextDataset) or (group.rotation is None and group.brightness is None),
                f"'data.groups.{group.name}' rotates or brightens images, but {images.name} has texts; leave "
                "'rotation' and 'brightness' out",
            )
        require(
            any(group.share > 0 for group in groups),
            f"at least one share of 'data.groups' must be above 0; got {_spell(groups)}",
        )
        total = sum(group.share for group in groups)
        require(abs(total - 1) < 1e-6, f"the shares of 'data.groups' must sum to 1; {_spell(groups)} sum to {total:g}")
        for group, count in zip(groups, apportion([group.share for group in groups], self.clients), strict=True):
            require(
                count > 0 or group.share == 0,
                f"'data.groups.{group.name}.share' = {group.share:g} of {self.clients} clients is no client; "
                "raise the share or 'data.clients'",
            )
        each = self.examples_per_client + self.holdout_examples
        clients, test, where = self.clients, self.test_examples, ""
        if self.reuse_images:
            clients = max(apportion([group.share for group in groups], clients))
            test = math.ceil(test / len(groups))
            where = " in the largest group"
        asked = clients * each + self.shadow_examples + test
        require(
            asked <= len(images.labels),
            f"'data' asks for {asked:,} {images.kind} ({clients} clients x {each} + {self.shadow_examples:,} shadow + "
            f"{test:,} test{where}), but {images.name} has {len(images.labels):,}",
        )


def partition_dataset(
    images: LabelledDataset, plan: Partition, groups: Sequence[Group], preferences: Preferences, stream: Stream
) -> Federation:
    """Deal ``images`` out to the clients of ``groups``, shadow set and test set, each image shifted by its group; or
    texts, as they are.

    Raises:
        InputError: more images asked for than there are, shares that do not sum to 1, a group with a share but
            without a client, or texts with a group that shifts.
    """
    plan.check(images, groups)
    counts = apportion([group.share for group in groups], plan.clients)
    draw = stream("split").numpy()
    order = shuffled(images, draw)
    places = _in_each_group(plan, order, counts, draw) if plan.reuse_images else _once(plan, order, groups)
    training, holdout, shadow, test = map(torch.from_numpy, places)

    group = torch.repeat_interleave(torch.arange(len(groups)), torch.tensor(counts))
    sizes = torch.full((plan.clients,), plan.examples_per_client)
    if plan.dirichlet_alpha is not None:
        owners = skew_labels(images.labels[training], plan.clients, plan.dirichlet_alpha, stream("skew"))
        training = training[torch.argsort(owners, stable=True)]
        sizes = torch.bincount(owners, minlength=plan.clients)

    shifter = Shifter(images, tuple(groups), stream)
    return Federation(
        clients=Shards.contiguous(
            shifter.pixels(training, torch.repeat_interleave(group, sizes)), images.labels[training], sizes
        ),
        holdout=Shards.contiguous(
            shifter.pixels(holdout, torch.repeat_interleave(group, plan.holdout_examples)),
            images.labels[holdout],
            torch.full((plan.clients,), plan.holdout_examples),
        ),
        shadow=shifter.examples(shadow, apportion([group.share for group in groups], len(shadow))),
        test=shifter.examples(test, _even(len(test), len(groups))),
        ids=torch.arange(plan.clients),
        group=group,
        groups=tuple(group.name for group in groups),
        preferences=preferences,
        classes=images.classes,
    )


def _once(plan: Partition, order: np.ndarray, groups: Sequence[Group]) -> list[np.ndarray]:
    """Images for training, holdout, shadow set and test set, each in one place."""
    cuts = np.cumsum([plan.clients * plan.examples_per_client, plan.clients * plan.holdout_examples])
    training, holdout, rest = np.split(order, cuts)
    test = _by_group(order[len(order) - plan.test_examples :], groups)
    return [training, holdout, rest[: plan.shadow_examples], test]


def _by_group(test: np.ndarray, groups: Sequence[Group]) -> np.ndarray:
    """The test images in equal parts, one group's after another's.

    Groups without clients are served first, so that the others keep the images that they have without them.
    """
    counts = _even(len(test), len(groups))
    served = sorted(range(len(groups)), key=lambda g: groups[g].share > 0)
    parts = dict(zip(served, np.split(test, np.cumsum([counts[g] for g in served])[:-1]), strict=True))
    return np.concatenate([parts[g] for g in range(len(groups))])


def _in_each_group(
    plan: Partition, order: np.ndarray, counts: list[int], draw: np.random.Generator
) -> list[np.ndarray]:
    """As `_once`, but the same images for the clients of each group (``counts``) and for each group's test."""
    needed = max(counts) * (plan.examples_per_client + plan.holdout_examples)
    training, holdout = [], []
    # A group without clients draws no order, so that it leaves the others theirs.
    for count in filter(None, counts):
        dealt = draw.permutation(order[:needed])
        cut = count * plan.examples_per_client
        training.append(dealt[:cut])
        holdout.append(dealt[cut : cut + count * plan.holdout_examples])
    shadow = order[needed : needed + plan.shadow_examples]
    test = [order[len(order) - count :] for count in _even(plan.test_examples, len(counts))]
    return [np.concatenate(training), np.concatenate(holdout), shadow, np.concatenate(test)]


def _even(total: int, parts: int) -> list[int]:
    return apportion([1 / parts] * parts, total)


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers that sum to ``total``, as near to ``shares`` of it as can be (largest remainders).

    >>> apportion([0.15, 0.85], 50)
    [8, 42]
    """
    exact = [share / sum(shares) * total for share in shares]
    # Rounding to nine places keeps 0.29 * 100 = 28.999999999999996 from losing a client.
    floors = [int(round(value, 9)) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (floors[i] - exact[i], i))
    for i in by_remainder[: total - sum(floors)]:
        floors[i] += 1
    return floors


def skew_labels(labels: Tensor, clients: int, alpha: float, stream: Stream) -> Tensor:
    """Owners (M,) int64 of M examples: each class is shared out over the clients by a Dirichlet(alpha) draw.

    Small ``alpha`` leaves clients with few classes and unequal sizes. A client that got nothing takes one
    example from the largest client, since a client without data is no client.

    Source: Hsu, Qi, Brown 2019, arXiv:1909.06335; Yurochkin et al. 2019, arXiv:1905.12022.
    """
    draw = stream.numpy()
    owners = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels.numpy()):
        rows = draw.permutation(np.flatnonzero(labels.numpy() == label))
        shares = draw.dirichlet(np.full(clients, alpha))
        cuts = np.floor(np.cumsum(shares)[:-1] * len(rows)).astype(np.int64)
        owners[rows] = np.searchsorted(cuts, np.arange(len(rows)), side="right")
    for client in np.flatnonzero(np.bincount(owners, minlength=clients) == 0):
        richest = np.bincount(owners, minlength=clients).argmax()
        owners[np.flatnonzero(owners == richest)[0]] = client
    return torch.from_numpy(owners)


def shuffled(images: LabelledDataset, draw: np.random.Generator) -> np.ndarray:
    """All rows in random order, those of the official training split first: (M,)."""
    official = images.train_count
    return np.concatenate([draw.permutation(official), official + draw.permutation(len(images.labels) - official)])


@dataclass(frozen=True, eq=False)
class Shifter:
    """Turns rows of a set of images into shifted images in [0, 1], each by its row alone; texts cannot be shifted."""

    images: LabelledDataset
    groups: tuple[Group, ...]
    stream: Stream

    def pixels(self, rows: Tensor, group: Tensor) -> Tensor:
        """The images at ``rows`` (m,), shifted by their ``group`` (m,): (m, C, H, W) float32, channels last.

        Texts are taken as they are: (m, L) int64.
        """
        if isinstance(self.images, TextDataset):
            return self.images.words[rows]
        draws = torch.rand(len(self.images.labels), 2, generator=self.stream("shift").generator())
        _, channels, height, width = self.images.pixels.shape
        shifted = torch.empty(len(rows), height, width, channels).permute(0, 3, 1, 2)
        for index, kind in enumerate(self.groups):
            mine = torch.nonzero(group == index).squeeze(1)
            pixels = self.images.pixels[rows[mine]].float() / self.images.white
            shifted[mine] = kind.shift(pixels, draws[rows[mine]])
        return shifted

    def examples(self, rows: Tensor, counts: list[int]) -> Examples:
        """The examples at ``rows`` (m,), the first ``counts[0]`` of the first group, and so on."""
        group = torch.repeat_interleave(torch.arange(len(self.groups)), torch.tensor(counts))
        return Examples(self.pixels(rows, group), self.images.labels[rows], group)


def _spell(groups: Sequence[Group]) -> str:
    return " + ".join(f"{group.share:g} ({group.name})" for group in groups)
