"""Numbers of clusters that do not hang on how a library numbers them."""

import torch
from torch import Tensor


def numbered_by_first(labels: Tensor) -> Tensor:
    """(n,) int64, the same parts with the numbers 0, 1, ... in the order in which they first appear.

    >>> numbered_by_first(torch.tensor([7, 2, 7, 5]))
    tensor([0, 1, 0, 2])
    """
    seen = list(dict.fromkeys(labels.tolist()))
    return torch.tensor([seen.index(each) for each in labels.tolist()], dtype=torch.int64)
