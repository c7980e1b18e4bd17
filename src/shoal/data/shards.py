"""Labelled examples: partitioned across owners (`Shards`), or of several groups together (`GroupedExamples`)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.formats import one_line


@dataclass(frozen=True, eq=False)
class Shards:
    """Labelled examples of n owners (clients, or shadow models).

    Owner i has the examples ``indices[offsets[i]:offsets[i + 1]]`` of x (M, ...) and y (M,). Shards may overlap, as
    those of shadow models do, and need not have equal sizes. ``weights`` (total,) are of the entries of ``indices`` in
    the loss of local training; None: all weigh 1. Evaluation ignores them. ``mapped``: x is a memory-mapped file, which
    no engine moves or copies (`ClientArrays`).

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
        """Shards of each owner's (x, y), concatenated in the order of the owners."""
        x, y = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return Shards.from_contiguous(x, y, torch.tensor([len(labels) for _, labels in pairs]))

    @staticmethod
    def from_contiguous(x: Tensor, y: Tensor, sizes: Tensor, *, memory_mapped: bool = False) -> "Shards":
        """Shards of consecutive examples: owner 0 has the first ``sizes[0]`` of x and y, and so on."""
        return Shards.from_indices(x, y, torch.arange(int(sizes.sum())), sizes, memory_mapped=memory_mapped)

    @staticmethod
    def from_indices(x: Tensor, y: Tensor, indices: Tensor, sizes: Tensor, *, memory_mapped: bool = False) -> "Shards":
        """Shards by indices into x and y: owner 0 has the first ``sizes[0]`` of ``indices``, and so on."""
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        return Shards(x, y, indices, offsets, memory_mapped=memory_mapped)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """(n,) int64, number of examples of each owner."""
        return self.offsets.diff()

    def indices_of(self, owner: int) -> Tensor:
        """(m,) int64, the owner's indices into x and y."""
        return self.indices[self.offsets[owner] : self.offsets[owner + 1]]

    def weights_of(self, owner: int) -> Tensor | None:
        """(m,), the weights of the owner's examples; None: all weigh 1."""
        return None if self.weights is None else self.weights[self.offsets[owner] : self.offsets[owner + 1]]

    def owners(self) -> Tensor:
        """(total,) int64, the owner of each entry of ``indices``."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def take(self, owners: Tensor) -> "Shards":
        """The shards of ``owners`` (k,) int64, in that order; x and y are shared, not copied."""
        # By the offsets, so that a few of many owners cost what these few do.
        first, sizes = self.offsets[:-1][owners], self.offsets[1:][owners] - self.offsets[:-1][owners]
        entries = _ranges(first, sizes)
        taken = Shards.from_indices(self.x, self.y, self.indices[entries], sizes, memory_mapped=self.memory_mapped)
        return taken if self.weights is None else replace(taken, weights=self.weights[entries])


def entries_of(sizes: Tensor, owners: Tensor) -> Tensor:
    """(m,) int64, the entries of ``owners`` (k,) among those of n owners of ``sizes`` (n,).

    >>> entries_of(torch.tensor([2, 1, 3]), torch.tensor([2, 0])).tolist()
    [3, 4, 5, 0, 1]
    """
    return _ranges((sizes.cumsum(0) - sizes)[owners], sizes[owners])


def _ranges(first: Tensor, sizes: Tensor) -> Tensor:
    """(m,) int64, the ``sizes[i]`` integers from ``first[i]`` on, for one i after another."""
    shift = torch.repeat_interleave(first - (sizes.cumsum(0) - sizes), sizes)
    return torch.arange(len(shift)) + shift


@dataclass(frozen=True, eq=False)
class GroupedExamples:
    """M labelled examples of several groups, such as the test set and the server's shadow set.

    Shapes: x (M, ...), y (M,) int64 (of a regression (M, d) float32), group (M,) int64, the index of the group whose
    distribution an example follows. ``client`` (M,) int64 is the id of the client that an example belongs to, -1: to
    none; None: unknown.
    """

    x: Tensor
    y: Tensor
    group: Tensor
    client: Tensor | None = field(default=None, compare=False)  # changes no model, so no fingerprint
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.y)

    def of_group(self, group: int) -> "GroupedExamples":
        """The examples of one group, in order."""
        return self.take(torch.nonzero(self.group == group).squeeze(1))

    def take(self, indices: Tensor) -> "GroupedExamples":
        """The examples at ``indices`` (m,) int64."""
        client = None if self.client is None else self.client[indices.cpu()]
        return GroupedExamples(gather(self.x, indices), self.y[indices], self.group[indices.cpu()], client)


def to_channels_last(x: Tensor) -> Tensor:
    """Inputs with the axes in stored order: images (M, C, H, W) become (M, H, W, C), texts stay."""
    return x.movedim(1, -1) if x.dim() == 4 else x


def to_channels_first(stored: Tensor) -> Tensor:
    """Stored inputs with the axes that a network takes: images (B, C, H, W), in channels-last memory format.

    The strides say "channels last" even for one channel, where PyTorch would otherwise take its slow layout.
    """
    return stored.movedim(-1, 1) if stored.dim() == 4 else stored


def gather(x: Tensor, indices: Tensor) -> Tensor:
    """The inputs at ``indices``, a new tensor that keeps the memory format of ``x``."""
    return to_channels_first(to_channels_last(x)[indices])


def concatenate(first: Tensor, second: Tensor) -> Tensor:
    """The inputs of one tensor and then those of the other, in the memory format of both."""
    return to_channels_first(torch.cat([to_channels_last(first), to_channels_last(second)]))


def to_pixels(images: Tensor) -> NDArray[np.uint8]:
    """Images (B, C, H, W) with values from 0 to 1 as (B, C, H, W) uint8, for a picture."""
    return (images.float().clamp(0, 1) * 255).round().to(torch.uint8).cpu().contiguous().numpy()


def to_compute_dtype(x: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Inputs on ``device``, images in ``dtype``; the numbers of words stay integers.

    A network uses these as indices, and bfloat16 represents few of 3,000 different integers.

    >>> to_compute_dtype(torch.tensor([2999, 3000]), torch.bfloat16, torch.device("cpu"))
    tensor([2999, 3000])
    """
    return x.to(device=device, dtype=x.dtype if x.dtype in (torch.int32, torch.int64) else dtype)
