"""A seat at the engine: one network whose tensors are views of one flat row, used by one thread."""

import torch
from torch import Tensor, nn

from shoal.core.checks import require
from shoal.models.model import Model

LONE_EXAMPLE = (
    "a client's last batch has one example, which batch norm cannot train on; choose a 'local.batch_size' that leaves "
    "no client a rest of one, or a network without batch norm"
)


class Seat:
    """A network bound to a row of numbers: writing the row changes the network, training it changes the row.

    With a ``dtype`` below float32 the row stays float32 (the master copy that small steps add up in) and the
    network computes on a copy of it in ``dtype``.

    A network that says ``onednn_layout = True`` is given its inputs in oneDNN's own layout, where there is one: on a
    CPU, in float32. All its layers must know it.
    """

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        layout = model.layout
        self.model = model
        self.dtype = dtype
        self.row = torch.zeros(layout.size, device=device)
        self._computed = self.row if dtype == torch.float32 else self.row.to(dtype)
        self.network = model.network().to(device)
        self._trained: list[nn.Parameter] = []
        master = layout.views(self.row)
        self._master: list[Tensor] = []
        self._onednn = (
            getattr(self.network, "onednn_layout", False)
            and device.type == "cpu"
            and dtype == torch.float32
            and torch.backends.mkldnn.is_available()
        )
        # A tensor that layers share has several names and one place in the row.
        given = dict(self.network.named_parameters(remove_duplicate=False))
        places = {id(parameter): [name for name in given if given[name] is parameter] for parameter in given.values()}
        for slot, (name, view) in zip(layout.slots, layout.views(self._computed).items(), strict=True):
            if name not in given:
                owner, _, leaf = name.rpartition(".")
                self.network.get_submodule(owner).register_buffer(leaf, view)
                continue
            parameter = nn.Parameter(view, requires_grad=slot.start < layout.trainable)
            if parameter.requires_grad:
                self._trained.append(parameter)
                self._master.append(master[name])
            for place in places[id(given[name])]:
                owner, _, leaf = place.rpartition(".")
                setattr(self.network.get_submodule(owner), leaf, parameter)

    def load(self, row: Tensor) -> None:
        """Copy a row (P,) into the network."""
        self.row.copy_(row)
        if self._computed is not self.row:
            self._computed.copy_(self.row)

    def step(self, x: Tensor, y: Tensor, rate: float, weight_decay: float) -> None:
        """One step of SGD on the mean loss of a batch."""
        try:
            outputs = self._forward(x)
        except ValueError as error:
            # Batch norm has no variance to divide by.
            require("more than 1 value per channel" not in str(error), LONE_EXAMPLE)
            raise
        # Neither an optimizer nor `.grad`: gradients are used once and need no place of their own.
        slopes = torch.autograd.grad(self.model.loss(outputs, y).mean(), self._trained, materialize_grads=True)
        trainable = slice(self.model.layout.trainable)
        if weight_decay:
            self.row[trainable].mul_(1 - rate * weight_decay)
        for weights, slope in zip(self._master, slopes, strict=True):
            weights.add_(slope, alpha=-rate)
        if self._computed is not self.row:
            buffers = slice(self.model.layout.trainable, None)
            self.row[buffers] = self._computed[buffers].float()
            self._computed[trainable].copy_(self.row[trainable])

    def outputs(self, x: Tensor) -> Tensor:
        """The network's outputs (B, C) in float32 for inputs x, in evaluation mode."""
        self.network.eval()
        with torch.inference_mode():
            return self._forward(x)

    def _forward(self, x: Tensor) -> Tensor:
        if self._onednn:
            return self.network(x.to_mkldnn()).to_dense()
        return self.network(x).float()
