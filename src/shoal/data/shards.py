"""Labelled examples: partitioned across owners (`Shards`), or of several groups (`GroupedExamples`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.formats import one_line


@dataclass(frozen=True, eq=False)
class Shards:
    """Labelled examples of n owners, such as clients or shadow models.

    Owner i has the examples ``indices[offsets[i]:offsets[i + 1]]`` of x (M, ...) and y (M,). Shards may overlap and may
    have different sizes.

    Args:
        x: the inputs (M, ...).
        y: the labels (M,), or regression targets (M, d).
        indices: the rows of x and y, ordered by owner, (total,) int64.
        offsets: the start of each owner's entries in ``indices``, (n + 1,) int64.
        weights: the weight of each entry of ``indices`` in the training loss, (total,), or None for equal weights.
        memory_mapped: whether ``x`` is a memory-mapped file, which engines neither move nor copy.

    Example:
        >>> import torch
        >>> from shoal.data import Shards
        >>> x, y = torch.arange(5.0)[:, None], torch.tensor([0, 1, 0, 1, 0])
        >>> shards = Shards.from_contiguous(x, y, torch.tensor([2, 3]))
        >>> shards.sizes, shards.indices_of(1), shards.owners()
        (tensor([2, 3]), tensor([2, 3, 4]), tensor([0, 0, 1, 1, 1]))
        >>> shards.take(torch.tensor([1])).x is x
        True
    """

    x: Tensor
    y: Tensor
    indices: Tensor
    offsets: Tensor
    weights: Tensor | None = None
    memory_mapped: bool = field(default=False, compare=False)  # no part of the content, which a fingerprint compares
    __repr__ = one_line

    @staticmethod
    def from_pairs(pairs: Sequence[tuple[Tensor, Tensor]]) -> "Shards":
        """Create shards from each owner's pair (x, y)."""
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return Shards.from_contiguous(x, y, torch.tensor([len(labels) for _, labels in pairs]))

    @staticmethod
    def from_contiguous(x: Tensor, y: Tensor, sizes: Tensor, *, memory_mapped: bool = False) -> "Shards":
        """Create shards of consecutive examples: the first owner has the first ``sizes[0]`` examples of x and y."""
        return Shards.from_indices(x, y, torch.arange(int(sizes.sum())), sizes, memory_mapped=memory_mapped)

    @staticmethod
    def from_indices(x: Tensor, y: Tensor, indices: Tensor, sizes: Tensor, *, memory_mapped: bool = False) -> "Shards":
        """Create shards of indices into x and y: the first owner has the first ``sizes[0]`` entries of ``indices``."""
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return Shards(x, y, indices, offsets, memory_mapped=memory_mapped)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """The number of examples of each owner, (n,) int64."""
        return self.offsets.diff()

    def indices_of(self, owner: int) -> Tensor:
        """Return the owner's indices into x and y, (m,) int64."""
        return self.indices[self.offsets[owner] : self.offsets[owner + 1]]

    def weights_of(self, owner: int) -> Tensor | None:
        """Return the weights of the owner's examples, (m,), or None for equal weights."""
        return None if self.weights is None else self.weights[self.offsets[owner] : self.offsets[owner + 1]]

    def owners(self) -> Tensor:
        """Return the owner of each entry of ``indices``, (total,) int64."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def take(self, owners: Tensor) -> "Shards":
        """Select the shards of ``owners`` (k,) int64, in the given order, without copying x and y."""
        # By the offsets, so that a few of many owners cost what these few do.
        first, sizes = self.offsets[:-1][owners], self.offsets[1:][owners] - self.offsets[:-1][owners]
        entries = _ranges(first, sizes)
        taken = Shards.from_indices(self.x, self.y, self.indices[entries], sizes, memory_mapped=self.memory_mapped)
        return taken if self.weights is None else replace(taken, weights=self.weights[entries])


def entries_of(sizes: Tensor, owners: Tensor) -> Tensor:
    """Return positions (m,) int64 of the entries of ``owners`` (k,); owner i has ``sizes[i]`` consecutive entries.

    >>> entries_of(torch.tensor([2, 1, 3]), torch.tensor([2, 0])).tolist()
    [3, 4, 5, 0, 1]
    """
    return _ranges((sizes.cumsum(0) - sizes)[owners], sizes[owners])


def _ranges(first: Tensor, sizes: Tensor) -> Tensor:
    """Return for each i the ``sizes[i]`` integers from ``first[i]`` on, concatenated to (m,) int64."""
    shift = torch.repeat_interleave(first - (sizes.cumsum(0) - sizes), sizes)
    return torch.arange(len(shift)) + shift


@dataclass(frozen=True, eq=False)
class GroupedExamples:
    """M labelled examples of several groups, such as the test set or the server's shadow set.

    Args:
        x: the inputs (M, ...).
        y: the labels (M,) int64, or regression targets (M, d) float32.
        group: the group of each example, (M,) int64.
        client: the id of each example's client, (M,) int64, -1 for an example without a client, or None if unknown.
    """

    x: Tensor
    y: Tensor
    group: Tensor
    client: Tensor | None = field(default=None, compare=False)  # changes no model, so no fingerprint
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.y)

    def of_group(self, group: int) -> "GroupedExamples":
        """Select the examples of one group, in order."""
        return self.take(torch.nonzero(self.group == group).squeeze(1))

    def take(self, indices: Tensor) -> "GroupedExamples":
        """Select the examples at ``indices`` (m,) int64."""
        client = None if self.client is None else self.client[indices.cpu()]
        return GroupedExamples(gather(self.x, indices), self.y[indices], self.group[indices.cpu()], client)


def to_channels_last(x: Tensor) -> Tensor:
    """Convert images (M, C, H, W) to (M, H, W, C); other inputs stay unchanged."""
    return x.movedim(1, -1) if x.dim() == 4 else x


def to_channels_first(stored: Tensor) -> Tensor:
    """Convert images (B, H, W, C) to (B, C, H, W) in channels-last memory format; other inputs stay unchanged."""
    return stored.movedim(-1, 1) if stored.dim() == 4 else stored


def gather(x: Tensor, indices: Tensor) -> Tensor:
    """Copy the inputs at ``indices`` to a new tensor with the memory format of ``x``."""
    return to_channels_first(to_channels_last(x)[indices])


def concatenate(first: Tensor, second: Tensor) -> Tensor:
    """Concatenate two tensors of inputs in their memory format."""
    return to_channels_first(torch.cat([to_channels_last(first), to_channels_last(second)]))


def to_pixels(images: Tensor) -> NDArray[np.uint8]:
    """Convert images (B, C, H, W) with values in [0, 1] to uint8."""
    return (images.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous().numpy()


def to_compute_dtype(x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Move inputs to ``device`` and convert them to ``dtype``; int32 and int64 inputs, such as word numbers, keep their
    type.

    >>> to_compute_dtype(torch.tensor([2999, 3000]), torch.bfloat16, torch.device("cpu"))
    tensor([2999, 3000])
    """
    return x.to(device=device, dtype=x.dtype if x.dtype in (torch.int32, torch.int64) else dtype)
