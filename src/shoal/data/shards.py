"""LabelledDataset examples dealt out to owners."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Shards:
    """LabelledDataset examples dealt out to n owners (clients, or shadow models).

    Owner i holds the examples ``rows[offsets[i]:offsets[i + 1]]`` of x (M, ...) and y (M,). Shards of
    different owners may overlap (shadow models' do), and need not have equal sizes.
    """

    x: Tensor
    y: Tensor
    rows: Tensor
    offsets: Tensor

    @staticmethod
    def of(pieces: Sequence[tuple[Tensor, Tensor]]) -> "Shards":
        """Shards that hold each owner's own (x, y), one after another."""
        sizes = torch.tensor([len(y) for _, y in pieces])
        x = torch.cat([x for x, _ in pieces])
        return Shards.contiguous(x, torch.cat([y for _, y in pieces]), sizes)

    @staticmethod
    def contiguous(x: Tensor, y: Tensor, sizes: Tensor) -> "Shards":
        """Shards cut from x and y one after another; sizes (n,)."""
        return Shards.dealt(x, y, torch.arange(int(sizes.sum())), sizes)

    @staticmethod
    def dealt(x: Tensor, y: Tensor, rows: Tensor, sizes: Tensor) -> "Shards":
        """Shards whose owners hold, one after another, the next ``sizes[i]`` of ``rows`` of x and y."""
        return Shards(x, y, rows, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def sizes(self) -> Tensor:
        """(n,) int64, examples of each owner."""
        return self.offsets.diff()

    def owned(self, owner: int) -> Tensor:
        """(m,) int64, the owner's rows of x and y."""
        return self.rows[self.offsets[owner] : self.offsets[owner + 1]]

    def owners(self) -> Tensor:
        """(total,) int64, the owner of each entry of ``rows``."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def take(self, owners: Tensor) -> "Shards":
        """The shards of ``owners`` (k,) int64, in that order, sharing the examples."""
        sizes = self.sizes[owners]
        shift = torch.repeat_interleave(self.offsets[owners] - (sizes.cumsum(0) - sizes), sizes)
        return Shards.dealt(self.x, self.y, self.rows[torch.arange(len(shift)) + shift], sizes)
