"""A model's parameters as one row of numbers, and the named tensors that are views of it.

Everything that moves whole models (averaging, checkpoints, norms, the wire) works on rows: K models are a
(K, P) matrix, n updates an (n, P) matrix. Names and shapes matter only where a network is evaluated.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from shoal.core.errors import require


@dataclass(frozen=True)
class Slot:
    """One named tensor in a row: ``row[start:start + size]``, of shape ``shape``.

    ``channels_last`` stores a convolution's weight (O, I, H, W) in the order O, H, W, I, which is what the
    CPU's convolution kernels read without reordering.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    channels_last: bool

    @property
    def size(self) -> int:
        """Numbers in the tensor."""
        return prod(self.shape)

    def view(self, row: Tensor) -> Tensor:
        """The tensor in ``row``, shape (P,) or (..., P), without a copy; leading axes are kept."""
        piece = row[..., self.start : self.start + self.size]
        if self.channels_last:
            out, inner, height, width = self.shape
            return piece.unflatten(-1, (out, height, width, inner)).movedim(-1, -3)
        return piece.reshape((*row.shape[:-1], *self.shape))


@dataclass(frozen=True)
class Layout:
    """Where each named tensor of a model lies in its row of P numbers; trainable ones come first.

    >>> layout = Layout.of({"w": torch.zeros(2, 3), "b": torch.zeros(2)}, {"mean": torch.zeros(2)})
    >>> layout.size, layout.trainable
    (10, 8)
    >>> layout.views(torch.arange(10.0))["b"]
    tensor([6., 7.])
    """

    slots: tuple[Slot, ...]
    trainable: int
    """Numbers that training changes by gradient; the other ``size - trainable`` are float buffers (batch norm's)."""

    @staticmethod
    def of(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> "Layout":
        """The layout of named trainable ``parameters`` followed by float ``buffers``."""
        slots: list[Slot] = []
        start = trainable = 0
        for named in (parameters, buffers):
            for name, tensor in named.items():
                slots.append(Slot(name, tuple(tensor.shape), start, channels_last=tensor.dim() == 4))
                start += tensor.numel()
            if named is parameters:
                trainable = start
        return Layout(tuple(slots), trainable)

    @property
    def size(self) -> int:
        """P, the length of a row."""
        return self.slots[-1].start + self.slots[-1].size

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """The named tensors of ``row``, shape (P,) or (..., P), without a copy; leading axes are kept."""
        return {slot.name: slot.view(row) for slot in self.slots}

    def pack(self, named: Mapping[str, Tensor]) -> Tensor:
        """A new row holding the tensors in ``named``.

        Raises:
            InputError: a name is missing or a shape is another one.
        """
        row = torch.empty(self.size, dtype=torch.float32)
        views = self.views(row)
        missing = sorted(set(views) - set(named))
        require(not missing, f"the model's tensors {missing} are missing")
        for name, view in views.items():
            given = tuple(named[name].shape)
            require(given == tuple(view.shape), f"tensor '{name}' must have shape {tuple(view.shape)}; got {given}")
            view.copy_(named[name].detach())
        return row
