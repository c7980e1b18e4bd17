"""A model's parameters as one flat vector, and the named tensors that are views of it.

Averaging, checkpoints, norms and messages work on flat vectors: K models are a (K, P) matrix, n updates an (n, P)
matrix. Names and shapes matter only where a network is evaluated.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from shoal.core.errors import require


@dataclass(frozen=True)
class Slot:
    """The place of one named tensor in a flat vector: ``vector[start:start + size]``, of shape ``shape``.

    ``channels_last`` stores a convolution's weight (O, I, H, W) in the order O, H, W, I, which the CPU's convolution
    kernels read without reordering.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    channels_last: bool

    @property
    def size(self) -> int:
        """Number of elements of the tensor."""
        return prod(self.shape)

    def view(self, vector: Tensor) -> Tensor:
        """The tensor in ``vector``, shape (P,) or (..., P), without a copy; leading axes are kept."""
        piece = vector[..., self.start : self.start + self.size]
        if self.channels_last:
            out, inner, height, width = self.shape
            return piece.unflatten(-1, (out, height, width, inner)).movedim(-1, -3)
        return piece.reshape((*vector.shape[:-1], *self.shape))


@dataclass(frozen=True)
class Layout:
    """The order of a model's named tensors in its flat vector of P elements; trainable ones come first.

    >>> layout = Layout.from_tensors({"w": torch.zeros(2, 3), "b": torch.zeros(2)}, {"mean": torch.zeros(2)})
    >>> layout.size, layout.trainable
    (10, 8)
    >>> layout.views(torch.arange(10.0))["b"], layout.slices({"b", "w"})
    (tensor([6., 7.]), [slice(0, 8, None)])
    """

    slots: tuple[Slot, ...]
    trainable: int
    """Number of trained elements; the other ``size - trainable`` are frozen, or float buffers (batch norm)."""

    @staticmethod
    def from_tensors(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> "Layout":
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
    def trainable_names(self) -> list[str]:
        """The names of the tensors that are trained, in order."""
        return [slot.name for slot in self.slots if slot.start < self.trainable]

    @property
    def size(self) -> int:
        """P, the length of the flat vector."""
        return self.slots[-1].start + self.slots[-1].size

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """The named tensors of ``vector``, shape (P,) or (..., P), without a copy; leading axes are kept."""
        return {slot.name: slot.view(vector) for slot in self.slots}

    def slices(self, names: Collection[str]) -> list[slice]:
        """The places of the tensors called ``names`` in the flat vector, neighbours joined, in order.

        Raises:
            InputError: no tensor has this name.
        """
        missing = sorted(set(names) - {slot.name for slot in self.slots})
        require(not missing, f"the model has no tensors {missing}")
        joined: list[slice] = []
        for slot in self.slots:
            if slot.name not in names:
                continue
            before = joined.pop() if joined and joined[-1].stop == slot.start else slice(slot.start, slot.start)
            joined.append(slice(before.start, slot.start + slot.size))
        return joined

    def pack(self, named: Mapping[str, Tensor]) -> Tensor:
        """A new flat vector (P,) of the tensors in ``named``.

        Raises:
            InputError: a name is missing or a shape is another one.
        """
        vector = torch.empty(self.size, dtype=torch.float32)
        views = self.views(vector)
        missing = sorted(set(views) - set(named))
        require(not missing, f"the model's tensors {missing} are missing")
        for name, view in views.items():
            shape = tuple(named[name].shape)
            require(shape == tuple(view.shape), f"tensor '{name}' must have shape {tuple(view.shape)}; got {shape}")
            view.copy_(named[name].detach())
        return vector
