"""Examples that a federation has more than once, by content: inputs and label, byte for byte."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.data.shards import Shards

_BLOCK = 2**22
"""Bytes of inputs that are hashed at once."""

_ODD = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""The multipliers of splitmix64 (Steele, Lea, Flood 2014)."""


def content_hashes(x: Tensor, y: Tensor) -> NDArray[np.uint64]:
    """(M,) hashes of 64 bits, equal where inputs (M, ...) and labels (M,) or (M, d) are.

    Of m different examples two have one hash with a probability of about m^2 / 2^65.

    >>> first, again, other = content_hashes(torch.tensor([[1.0], [1.0], [1.0]]), torch.tensor([0, 0, 1])).tolist()
    >>> first == again, first == other
    (True, False)
    """
    hashes = np.zeros(len(y), dtype=np.uint64)
    for number, part in enumerate((x, y)):
        size = max(1, _BLOCK // max(1, part[:1].numel() * part.element_size()))
        for first in range(0, len(y), size):
            hashes[first : first + size] += _of_rows(part[first : first + size].detach().cpu(), number)
    return hashes


def _of_rows(rows: Tensor, part: int) -> NDArray[np.uint64]:
    """The sum over each row's 64-bit words of a mixture of the word with a key of its place."""
    content = rows.reshape(len(rows), -1).contiguous().view(torch.uint8).numpy()
    padded = np.pad(content, ((0, 0), (0, -content.shape[1] % 8)))
    keys = Stream(0)("content", part).numpy().integers(2**64, size=padded.shape[1] // 8, dtype=np.uint64)
    words = padded.view(np.uint64) ^ keys
    for shift, odd in zip((30, 27), _ODD, strict=True):
        words ^= words >> np.uint64(shift)
        words *= odd
    words ^= words >> np.uint64(31)
    return words.sum(axis=1, dtype=np.uint64)


def hashes_alike(first: Shards, *others: Shards) -> list[NDArray[np.uint64]]:
    """`content_hashes` of the entries of each, in bfloat16 if one of them is, so that they can be compared."""
    coarse = any(each.x.dtype == torch.bfloat16 for each in (first, *others))
    return [
        content_hashes(each.x.bfloat16() if coarse else each.x, each.y)[each.indices.numpy()]
        for each in (first, *others)
    ]


@dataclass(frozen=True)
class Copies:
    """How many examples are copies of a training example.

    Args:
        within: training examples that their client has already.
        across: training examples that another client has, each client's first.
        test, holdout, shadow: examples of these sets that a client trains on.
        examples: of all these sets together.
    """

    within: int
    across: int
    test: int
    holdout: int
    shadow: int
    examples: int

    @property
    def total(self) -> int:
        """All copies."""
        return self.within + self.across + self.test + self.holdout + self.shadow

    def __str__(self) -> str:
        kinds = {"within clients": self.within, "across clients": self.across, "in the test set": self.test}
        kinds |= {"in the hold-outs": self.holdout, "in the shadow set": self.shadow}
        listed = ", ".join(f"{count:,} {where}" for where, count in kinds.items() if count)
        return f"{self.total:,} of the {self.examples:,} examples are copies of training examples: {listed}"


@dataclass(frozen=True, eq=False)
class ExampleHashes:
    """`content_hashes` of the examples of a federation: of every entry of its shards, and of its sets.

    Args:
        clients: (T,) of the training examples, client after client.
        owner: (T,) the position of each one's client.
        holdout, test, shadow: of the examples of these sets.
    """

    clients: NDArray[np.uint64]
    owner: NDArray[np.int64]
    holdout: NDArray[np.uint64]
    test: NDArray[np.uint64]
    shadow: NDArray[np.uint64]

    @staticmethod
    def of(federation: Federation) -> "ExampleHashes":
        """Those of all examples; they are read once."""
        clients, holdout = (
            content_hashes(each.x, each.y)[each.indices.numpy()] for each in (federation.clients, federation.holdout)
        )
        test, shadow = (content_hashes(each.x, each.y) for each in (federation.test, federation.shadow))
        return ExampleHashes(clients, federation.clients.owners().numpy(), holdout, test, shadow)

    def copies(self) -> Copies:
        """How many are copies of training examples."""
        order = np.argsort(self.clients, kind="stable")
        again = np.diff(self.clients[order]) == 0
        # Entries lie client after client, so those of one content are in the order of their clients.
        same_owner = np.diff(self.owner[order]) == 0
        others = (self.test, self.holdout, self.shadow)
        return Copies(
            int((again & same_owner).sum()),
            int((again & ~same_owner).sum()),
            *(int(np.isin(each, self.clients).sum()) for each in others),
            examples=len(self.clients) + sum(map(len, others)),
        )

    def repeated(self) -> NDArray[np.uint64]:
        """The hashes of which the federation has several examples, in whatever sets."""
        value, count = np.unique(
            np.concatenate([self.clients, self.holdout, self.test, self.shadow]), return_counts=True
        )
        return value[count > 1]
