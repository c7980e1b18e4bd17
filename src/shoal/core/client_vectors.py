"""A vector for each of N clients, such as its own model: N rows, of which a round replaces a few and copies none."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import repeat

import torch
from torch import Tensor

BLOCK = 2**24
"""Numbers that are copied at once from one place to another: 64 MiB."""


class ClientVectors(ABC):
    """N rows of d float32 numbers, one of each client.

    A value: `replaced` gives another one and leaves this one as it is. It costs what the replaced rows cost, whatever
    N. Clients that have the same row, as all have before the first round, share it until it is replaced.

    Example:
        >>> import torch
        >>> from shoal.engine import ClientVectors
        >>> before = ClientVectors.same(torch.zeros(2), 3)
        >>> after = before.moved(torch.tensor([1]), torch.ones(1, 2))
        >>> after.tensor().tolist(), before.tensor().sum(), len(after.distinct()[0])
        ([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], tensor(0.), 2)
    """

    @staticmethod
    def same(row: Tensor, clients: int) -> "VectorsInMemory":
        """The same ``row`` (d,) for each of N ``clients``.

        >>> rows = ClientVectors.same(torch.zeros(2), 3)
        >>> rows.replaced(torch.tensor([1]), torch.ones(1, 2)).tensor()
        tensor([[0., 0.],
                [1., 1.],
                [0., 0.]])
        """
        return VectorsInMemory(tuple(repeat(row.clone(), clients)))

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int]:
        """N and d."""

    @abstractmethod
    def __getitem__(self, clients: Tensor) -> Tensor:
        """The rows of some clients, of positions (n,) int64: (n, d), a new tensor."""

    @abstractmethod
    def replaced(self, clients: Tensor, rows: Tensor) -> "ClientVectors":
        """These with ``rows`` (n, d) for ``clients`` (n,) int64, each at most once."""

    @abstractmethod
    def distinct(self) -> tuple[Tensor, Tensor]:
        """Who shares a row: for each of U distinct rows a client (U,) that has it; and which it is of each (N,)."""

    def moved(self, clients: Tensor, update: Tensor) -> "ClientVectors":
        """These with ``update`` (n, d) added to the rows of ``clients`` (n,) int64, each at most once."""
        return self.replaced(clients, self[clients] + update)

    def tensor(self) -> Tensor:
        """All rows at once: (N, d), a new tensor."""
        return self[torch.arange(len(self))]

    def blocks(self) -> Iterator[Tensor]:
        """The U rows of `distinct`, in order, some at a time: (u, d) each."""
        first, _ = self.distinct()
        for some in first.split(max(1, BLOCK // max(1, self.shape[1]))):
            yield self[some]

    def in_memory(self) -> "VectorsInMemory":
        """The same rows in memory."""
        each = [row.clone() for block in self.blocks() for row in block]
        return VectorsInMemory(tuple(each[i] for i in self.distinct()[1].tolist()))

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.shape}"


class VectorsInMemory(ClientVectors):
    """Rows in memory. What no value refers to any longer is freed.

    Args:
        rows: N of them, (d,) each; those of several clients may be the same tensor. At least one.
    """

    def __init__(self, rows: tuple[Tensor, ...]) -> None:
        self._rows = rows

    @property
    def shape(self) -> tuple[int, int]:
        """See `ClientVectors`."""
        return len(self._rows), len(self._rows[0])

    def __getitem__(self, clients: Tensor) -> Tensor:
        if not len(clients):
            return self._rows[0].new_empty(0, self.shape[1])
        return torch.stack([self._rows[i] for i in clients.tolist()])

    def replaced(self, clients: Tensor, rows: Tensor) -> "VectorsInMemory":
        """See `ClientVectors`."""
        changed = list(self._rows)
        for i, row in zip(clients.tolist(), rows, strict=True):
            # Not a view, which would keep the rows of all these clients until the last of them is replaced.
            changed[i] = row.to(changed[i], copy=True)
        return VectorsInMemory(tuple(changed))

    def distinct(self) -> tuple[Tensor, Tensor]:
        """See `ClientVectors`; in the order of the clients."""
        first: dict[int, int] = {}
        for i, row in enumerate(self._rows):
            first.setdefault(id(row), i)
        number = {row: u for u, row in enumerate(first)}
        return torch.tensor(list(first.values())), torch.tensor([number[id(row)] for row in self._rows])

    def in_memory(self) -> "VectorsInMemory":
        """These."""
        return self
