"""The layout of a model's named tensors in one flat parameter vector.

Averaging, checkpoints, norms and messages use flat vectors, so K models are a matrix (K, P). Only the evaluation of a
network needs names and shapes.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from shoal.core.errors import require


@dataclass(frozen=True)
class Slot:
    """The slice ``vector[start:start + size]`` of one named tensor of shape ``shape`` in a flat vector.

    With ``channels_last``, a convolution's weight (O, I, H, W) is stored in the order O, H, W, I, the native order of
    CPU convolution kernels.
    """

    name: str
    shape: tuple[int, ...]
    start: int
    channels_last: bool

    @property
    def size(self) -> int:
        """The number of elements of the tensor."""
        return prod(self.shape)

    def view(self, vector: Tensor) -> Tensor:
        """Return a view of the tensor in ``vector``, (P,) or (..., P); leading axes are kept."""
        piece = vector[..., self.start : self.start + self.size]
        if self.channels_last:
            out, inner, height, width = self.shape
            return piece.unflatten(-1, (out, height, width, inner)).movedim(-1, -3)
        return piece.reshape((*vector.shape[:-1], *self.shape))


@dataclass(frozen=True)
class Layout:
    """The order of a model's named tensors in its flat vector of P elements, trainable tensors first.

    >>> layout = Layout.from_tensors({"w": torch.zeros(2, 3), "b": torch.zeros(2)}, {"mean": torch.zeros(2)})
    >>> layout.size, layout.trainable
    (10, 8)
    >>> layout.views(torch.arange(10.0))["b"], layout.slices({"b", "w"})
    (tensor([6., 7.]), [slice(0, 8, None)])
    """

    slots: tuple[Slot, ...]
    trainable: int
    """The number of trained elements. The remaining elements are frozen parameters or float buffers (batch norm)."""

    @staticmethod
    def from_tensors(parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> "Layout":
        """Return the layout of named trainable ``parameters`` followed by float ``buffers``."""
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
        """The names of the trainable tensors, in order."""
        return [slot.name for slot in self.slots if slot.start < self.trainable]

    @property
    def size(self) -> int:
        """The length P of the flat vector."""
        return self.slots[-1].start + self.slots[-1].size

    def views(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of the named tensors in ``vector``, (P,) or (..., P); leading axes are kept."""
        return {slot.name: slot.view(vector) for slot in self.slots}

    def slices(self, names: Collection[str]) -> list[slice]:
        """Return the slices of the named tensors in the flat vector, in order, with adjacent slices joined.

        Raises:
            InputError: a name is unknown.
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
        """Return a new flat vector (P,) of the tensors in ``named``.

        Raises:
            InputError: a tensor is missing or has a wrong shape.
        """
        vector = torch.empty(self.size, dtype=torch.float32)
        views = self.views(vector)
        missing = sorted(set(views) - set(named))
        require(not missing, f"the model's tensors {missing} are missing")
        for name, view in views.items():
            shape = tuple(named[name].shape)
            require(shape == tuple(view.shape), f"tensor '{name}' must have shape {tuple(view.shape)} (got {shape})")
            view.copy_(named[name].detach())
        return vector
