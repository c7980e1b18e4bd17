"""Models of clients that are made one by one, so that those of all clients need not be in memory at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from shoal.core.client_vectors import ClientVectors


@dataclass(frozen=True, eq=False)
class PersonalModels:
    """The models of n clients; used as a tensor (n, P) is of which one row is looked at at a time, or some in turn.

    Args:
        count: n.
        rows: maps positions (u,) int64 among the n to models (u, P).

    Example:
        >>> import torch
        >>> from shoal.engine import ClientVectors, PersonalModels
        >>> rows = ClientVectors.same(torch.zeros(2), 3).replaced(torch.tensor([2]), torch.ones(1, 2))
        >>> models = PersonalModels.from_rows(rows, torch.tensor([2, 0]))
        >>> len(models), models[0], models[1:].tensor(), models.tensor().shape
        (2, tensor([1., 1.]), tensor([[0., 0.]]), torch.Size([2, 2]))
    """

    count: int
    rows: Callable[[Tensor], Tensor]

    @staticmethod
    def from_rows(rows: ClientVectors, clients: Tensor) -> "PersonalModels":
        """The models of the clients at positions (n,) int64 of ``rows``."""
        return PersonalModels(len(clients), lambda some: rows[clients[some]])

    def __len__(self) -> int:
        return self.count

    @overload
    def __getitem__(self, client: int) -> Tensor: ...
    @overload
    def __getitem__(self, client: slice) -> "PersonalModels": ...
    def __getitem__(self, client: "int | slice") -> "Tensor | PersonalModels":
        """(P,), the model of one client; or those of some, of which none is made yet."""
        if isinstance(client, slice):
            some = torch.arange(self.count)[client]
            return PersonalModels(len(some), lambda positions: self.rows(some[positions]))
        return self.rows(torch.tensor([client]))[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[client] for client in range(self.count))

    def tensor(self) -> Tensor:
        """All models at once: (n, P)."""
        return self.rows(torch.arange(self.count))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.count} clients)"
