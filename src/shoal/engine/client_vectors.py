"""A vector for each of N clients, such as its own model: a copy-on-write (N, d) store."""

import torch
from torch import Tensor


class ClientVectors:
    """N vectors of d float32 numbers, one per client.

    A value: `replaced` returns another one, at the cost of the replaced vectors alone, and leaves this one unchanged.
    Clients with the same vector, as all have before the first round, share it until it is replaced. A vector that no
    value refers to is freed.

    Args:
        rows: N vectors (d,), at least one; the same tensor for clients that share a vector.

    Example:
        >>> import torch
        >>> from shoal.engine import ClientVectors
        >>> before = ClientVectors.same(torch.zeros(2), 3)
        >>> after = before.moved(torch.tensor([1]), torch.ones(1, 2))
        >>> after.tensor().tolist(), before.tensor().sum(), len(after.distinct()[0])
        ([[0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], tensor(0.), 2)
    """

    def __init__(self, rows: tuple[Tensor, ...]) -> None:
        self._rows = rows

    @staticmethod
    def same(row: Tensor, clients: int) -> "ClientVectors":
        """The same vector ``row`` (d,) for each of N ``clients``."""
        return ClientVectors((row.clone(),) * clients)

    @property
    def shape(self) -> tuple[int, int]:
        """N and d."""
        return len(self._rows), len(self._rows[0])

    def __getitem__(self, clients: Tensor) -> Tensor:
        """The vectors of the clients at positions (n,) int64: (n, d), a new tensor."""
        if not len(clients):
            return self._rows[0].new_empty(0, self.shape[1])
        return torch.stack([self._rows[i] for i in clients.tolist()])

    def replaced(self, clients: Tensor, rows: Tensor) -> "ClientVectors":
        """The store with ``rows`` (n, d) for ``clients`` (n,) int64, each client at most once."""
        changed = list(self._rows)
        for i, row in zip(clients.tolist(), rows, strict=True):
            # A view would keep all of ``rows`` until the last one is replaced.
            changed[i] = row.to(changed[i], copy=True)
        return ClientVectors(tuple(changed))

    def moved(self, clients: Tensor, update: Tensor) -> "ClientVectors":
        """The store with ``update`` (n, d) added to the vectors of ``clients`` (n,) int64, each client at most once."""
        return self.replaced(clients, self[clients] + update)

    def tensor(self) -> Tensor:
        """All vectors: (N, d), a new tensor."""
        return self[torch.arange(len(self))]

    def distinct(self) -> tuple[Tensor, Tensor]:
        """A client of each of the U distinct vectors (U,), in order of first appearance; and each client's number of
        its vector among them (N,).
        """
        first: dict[int, int] = {}
        for client, row in enumerate(self._rows):
            first.setdefault(id(row), client)
        number = {place: u for u, place in enumerate(first)}
        return torch.tensor(list(first.values())), torch.tensor([number[id(row)] for row in self._rows])

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.shape}"
