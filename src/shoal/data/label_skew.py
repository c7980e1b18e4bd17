"""Label skew: the examples of each class are partitioned over clients in random proportions.

Sources: Hsu, Qi, Brown 2019, arXiv:1909.06335, and Yurochkin et al. 2019, arXiv:1905.12022; balanced by Wang et al.
2020, arXiv:2002.06440.
"""

import numpy as np
import torch
from torch import Tensor

from shoal.core.randomness import Stream


def skew_labels(labels: Tensor, clients: int, alpha: float, stream: Stream) -> Tensor:
    """The client of each example, (M,) int64, by proportions p ~ Dirichlet(alpha, ..., alpha) of each class.

    With a small ``alpha`` clients have few classes and unequal sizes. A client without any example gets one of the
    largest client, since a client must have data.
    """
    owners = draw_owners(labels.numpy(), clients, alpha, stream.numpy())
    for client in np.flatnonzero(np.bincount(owners, minlength=clients) == 0):
        largest = np.bincount(owners, minlength=clients).argmax()
        owners[np.flatnonzero(owners == largest)[0]] = client
    return torch.from_numpy(owners)


def draw_owners(
    labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator, *, balanced: bool = False
) -> np.ndarray:
    """As `skew_labels`, but some clients may have no example.

    Where ``balanced``, a client that has 1/clients of all examples gets none of the classes that follow.
    """
    owners = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        indices = rng.permutation(np.flatnonzero(labels == label))
        shares = rng.dirichlet(np.full(clients, alpha))
        if balanced:
            has_room = np.bincount(owners[labels < label], minlength=clients) < len(labels) / clients
            # A small alpha may give everything to clients that get no more.
            shares = shares * has_room if (shares * has_room).any() else has_room
            shares = shares / shares.sum()
        cuts = np.floor(np.cumsum(shares)[:-1] * len(indices)).astype(np.int64)
        owners[indices] = np.searchsorted(cuts, np.arange(len(indices)), side="right")
    return owners
