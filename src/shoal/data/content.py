"""Fingerprints of data, and the search for examples that a federation has more than once."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.data.federation import Federation
from shoal.data.shards import Shards
from shoal.data.user.client_dataset import SourceData

_BLOCK = 2**24
"""The number of tensor elements that are hashed at once."""


def fingerprint(data: SourceData | tuple[Tensor, ...]) -> str:
    """Return the SHA-256 hash of every tensor, name, group, preference and schedule in ``data``, in hexadecimal."""
    return _digest(data, _bytes_of)


def fingerprint_up_to_rounding(data: SourceData) -> str:
    """Return a fingerprint that ignores rounding differences between processors.

    Each tensor of floats contributes its shape, and its mean and standard deviation to three decimals.
    """
    return _digest(data, lambda value: _moments_of(value) if value.is_floating_point() else _bytes_of(value))


def _digest(data: object, feed_tensor: Callable[[Tensor], Iterable[bytes | memoryview]]) -> str:
    digest = hashlib.sha256()

    def feed(value: object) -> None:
        if isinstance(value, Tensor):
            digest.update(repr((value.dtype, tuple(value.shape))).encode())
            for part in feed_tensor(value):
                digest.update(part)
        elif isinstance(value, pd.DataFrame):
            feed(tuple(value))
            digest.update(pd.util.hash_pandas_object(value, index=False).to_numpy().tobytes())
        elif is_dataclass(value):
            for field in filter(lambda field: field.compare, fields(value)):
                digest.update(field.name.encode())
                feed(getattr(value, field.name))
        elif isinstance(value, tuple):
            digest.update(f"{len(value)} values".encode())
            for item in value:
                feed(item)
        elif callable(value):  # its address differs from process to process
            raise TypeError(f"a function has no fingerprint (got {value!r})")
        else:
            digest.update(repr(value).encode())

    feed(data)
    return digest.hexdigest()


def _bytes_of(value: Tensor) -> Iterator[memoryview]:
    # In blocks, so that not all rows are copied at once where they do not lie in order.
    for block in value.detach().cpu().split(_rows(value)) if value.dim() else [value.detach().cpu()]:
        # A copy, since a tensor of one number counts as contiguous with any stride, but is not to `view`.
        flat = block.contiguous().flatten()
        flat = flat.clone(memory_format=torch.contiguous_format) if len(flat) == 1 else flat
        yield flat.view(torch.uint8).numpy().data


def _moments_of(value: Tensor) -> Iterator[bytes]:
    numbers = value.detach().cpu().double()
    if numbers.numel():
        yield f"{float(numbers.mean()):.3f} {float(numbers.std(correction=0)):.3f}".encode()


def _rows(value: Tensor) -> int:
    """Return the number of rows per block."""
    return max(1, _BLOCK // max(1, value[:1].numel()))


def content_hashes(x: Tensor, y: Tensor) -> NDArray[np.uint64]:
    """Return 64-bit hashes (M,) that are equal for equal inputs (M, ...) and labels (M,) or (M, d).

    Among m different examples, two have equal hashes with a probability of about m^2 / 2^65.

    >>> first, again, other = content_hashes(torch.tensor([[1.0], [1.0], [1.0]]), torch.tensor([0, 0, 1])).tolist()
    >>> first == again, first == other
    (True, False)
    """
    digests, size = [], _rows(x)
    for first in range(0, len(y), size):
        parts = [_row_bytes(part[first : first + size]) for part in (x, y)]
        digests += [hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in np.concatenate(parts, axis=1)]
    return np.frombuffer(b"".join(digests), np.uint64)


def _row_bytes(rows: Tensor) -> NDArray[np.uint8]:
    return rows.detach().cpu().reshape(len(rows), -1).contiguous().view(torch.uint8).numpy()


def comparable_hashes(first: Shards, *others: Shards) -> list[NDArray[np.uint64]]:
    """Return the `content_hashes` of several shards, computed in bfloat16 if any of the shards is in bfloat16."""
    coarse = any(shards.x.dtype == torch.bfloat16 for shards in (first, *others))
    return [
        content_hashes(shards.x.bfloat16() if coarse else shards.x, shards.y)[shards.indices.numpy()]
        for shards in (first, *others)
    ]


def most_copies(clients: Shards) -> Tensor:
    """Return the number of copies of each client's most frequent example, (N,) int64, at least 1.

    >>> x, y = torch.tensor([[1.0], [1.0], [2.0], [1.0]]), torch.tensor([0, 0, 0, 0])
    >>> most_copies(Shards.from_contiguous(x, y, torch.tensor([3, 1])))
    tensor([2, 1])
    """
    hashes = content_hashes(clients.x, clients.y)[clients.indices.numpy()]
    (owners, _), counts = np.unique(
        np.stack([clients.owners().numpy().astype(np.uint64), hashes]), axis=1, return_counts=True
    )
    most = np.ones(len(clients), np.int64)
    np.maximum.at(most, owners.astype(np.int64), counts)
    return torch.from_numpy(most)


@dataclass(frozen=True)
class Copies:
    """The numbers of examples that are copies of a training example.

    Args:
        within: the number of training examples that repeat an earlier example of the same client.
        across: the number of training examples that repeat an example of an earlier client.
        test, holdout, shadow: the number of examples in each set that repeat a client's training example.
        examples: the total number of examples.
    """

    within: int
    across: int
    test: int
    holdout: int
    shadow: int
    examples: int

    @property
    def total(self) -> int:
        """The total number of copies."""
        return self.within + self.across + self.test + self.holdout + self.shadow

    def __str__(self) -> str:
        kinds = {"within clients": self.within, "across clients": self.across, "in the test set": self.test}
        kinds |= {"in the hold-outs": self.holdout, "in the shadow set": self.shadow}
        listed = ", ".join(f"{count:,} {place}" for place, count in kinds.items() if count)
        return f"{self.total:,} of {self.examples:,} examples are copies of training examples ({listed})"


@dataclass(frozen=True, eq=False)
class ExampleHashes:
    """The `content_hashes` of the examples of a federation.

    Args:
        clients: the hashes of the T training examples, (T,), ordered by client.
        owner: the position of each training example's client, (T,).
        holdout, test, shadow: the hashes of the examples in each set.
    """

    clients: NDArray[np.uint64]
    owner: NDArray[np.int64]
    holdout: NDArray[np.uint64]
    test: NDArray[np.uint64]
    shadow: NDArray[np.uint64]

    @staticmethod
    def from_federation(federation: Federation) -> "ExampleHashes":
        """Compute the hashes of all examples of ``federation``."""
        clients, holdout = (
            content_hashes(part.x, part.y)[part.indices.numpy()] for part in (federation.clients, federation.holdout)
        )
        test, shadow = (content_hashes(part.x, part.y) for part in (federation.test, federation.shadow))
        return ExampleHashes(clients, federation.clients.owners().numpy(), holdout, test, shadow)

    def copies(self) -> Copies:
        """Return the numbers of copies of training examples."""
        order = np.argsort(self.clients, kind="stable")
        again = np.diff(self.clients[order]) == 0
        # Entries lie client after client, so those of one content are in the order of their clients.
        same_owner = np.diff(self.owner[order]) == 0
        others = (self.test, self.holdout, self.shadow)
        return Copies(
            int((again & same_owner).sum()),
            int((again & ~same_owner).sum()),
            *(int(np.isin(part, self.clients).sum()) for part in others),
            examples=len(self.clients) + sum(map(len, others)),
        )

    def repeated(self) -> NDArray[np.uint64]:
        """Return the hashes of all examples that occur more than once in the federation."""
        value, count = np.unique(
            np.concatenate([self.clients, self.holdout, self.test, self.shadow]), return_counts=True
        )
        return value[count > 1]
