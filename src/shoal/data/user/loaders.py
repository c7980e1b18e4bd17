"""All examples of a PyTorch `DataLoader` in one pair, as apps of Flower hand their clients' data over."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from shoal.core.errors import described, quoted, require

LABELS = ("label", "labels")
"""The keys of labels in batches of Hugging Face's data sets."""


def pair_of_loader(name: str, loader: DataLoader[Any]) -> tuple[Tensor, Tensor]:
    """Inputs (m, ...) and labels (m,) of all batches, in the loader's order.

    Batches are pairs (x, y), or dictionaries of the inputs, under any key, and ``label`` or ``labels``.

    Args:
        name: of the examples in sentences.
        loader: goes through its examples once; examples that it leaves out (``drop_last``) are not among them.

    Raises:
        InputError: other batches, or none.

    Example:
        >>> import torch
        >>> from torch.utils.data import DataLoader
        >>> from shoal.data.user.loaders import pair_of_loader
        >>> rows = [{"img": torch.ones(2), "label": 0}, {"img": torch.zeros(2), "label": 1}]
        >>> pair_of_loader("client 3", DataLoader(rows, batch_size=2))
        (tensor([[1., 1.],
                [0., 0.]]), tensor([0, 1]))
    """
    pairs = [_pair(name, batch) for batch in loader]
    require(bool(pairs), f"{name} is a data loader without batches")
    xs, ys = zip(*pairs, strict=True)
    return torch.cat(xs), torch.cat(ys)


def _pair(name: str, batch: object) -> tuple[Tensor, Tensor]:
    allowed = f"give batches that are pairs (x, y) of tensors, or dictionaries of inputs and {quoted(LABELS)}"
    if isinstance(batch, Mapping):
        labels = [key for key in batch if key in LABELS]
        found = f"{name} is a data loader of batches with {quoted(map(str, batch))}; {allowed}"
        require(len(batch) == 2 and len(labels) == 1, found)
        batch = [*(values for key, values in batch.items() if key not in LABELS), batch[labels[0]]]
    pair = isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
    require(pair, f"{name} is a data loader of batches of {described(batch)}; {allowed}")
    x, y = batch  # pyright: ignore[reportGeneralTypeIssues]
    return x, y
