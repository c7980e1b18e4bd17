"""Label skew: owners of examples such that clients differ in how often they have each class."""

import numpy as np
import torch
from torch import Tensor

from shoal.core.randomness import Stream


def skew_labels(labels: Tensor, clients: int, alpha: float, stream: Stream) -> Tensor:
    """The client of each example, (M,) int64: each class is dealt out in proportions p ~ Dirichlet(alpha, ..., alpha).

    With a small ``alpha`` clients have few classes and unequal sizes. A client without any example gets one of the
    largest client, since a client must have data.

    Source: Hsu, Qi, Brown 2019, arXiv:1909.06335; Yurochkin et al. 2019, arXiv:1905.12022.
    """
    rng = stream.numpy()
    owners = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels.numpy()):
        indices = rng.permutation(np.flatnonzero(labels.numpy() == label))
        owners[indices] = _split(len(indices), rng.dirichlet(np.full(clients, alpha)))
    for client in np.flatnonzero(np.bincount(owners, minlength=clients) == 0):
        largest = np.bincount(owners, minlength=clients).argmax()
        owners[np.flatnonzero(owners == largest)[0]] = client
    return torch.from_numpy(owners)


def skew_labels_balanced(labels: np.ndarray, clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """As `skew_labels`, but a client that has 1/clients of all examples gets none of the classes that follow, and some
    clients may have no example.

    Source: Wang et al. 2020, arXiv:2002.06440.
    """
    owners = np.zeros(len(labels), dtype=np.int64)
    sizes = np.zeros(clients)
    for label in np.unique(labels):
        indices = rng.permutation(np.flatnonzero(labels == label))
        open_to = sizes < len(labels) / clients
        shares = rng.dirichlet(np.full(clients, alpha)) * open_to
        if shares.sum() == 0:
            # A small alpha gave everything to clients that get no more.
            shares = open_to.astype(np.float64)
        owners[indices] = _split(len(indices), shares / shares.sum())
        sizes = np.bincount(owners[labels <= label], minlength=clients)
    return owners


def _split(count: int, shares: np.ndarray) -> np.ndarray:
    """The owner of each of ``count`` examples, in the order of the owners, by their ``shares`` of them."""
    cuts = np.floor(np.cumsum(shares)[:-1] * count).astype(np.int64)
    return np.searchsorted(cuts, np.arange(count), side="right")
