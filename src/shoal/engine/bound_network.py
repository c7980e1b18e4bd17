"""A seat at the engine: one network whose tensors are views of one flat row, used by one thread."""

import torch
from torch import Tensor, nn

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.engine.gradient_clipping import PerExampleClipper
from shoal.engine.local_sgd import LocalSGD
from shoal.models.dropout import seeded_dropouts
from shoal.models.model import Model

LONE_EXAMPLE = (
    "a client's last batch has one example, which batch norm cannot train on; choose a 'local.batch_size' that leaves "
    "no client a rest of one, or a network without batch norm"
)


class BoundNetwork:
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
        self._dropouts = seeded_dropouts(self.network)
        self._clipped: PerExampleClipper | None = None
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

    def seed(self, seed: int) -> None:
        """Begin the random draws of an owner: dropout draws its masks from a place below ``seed``."""
        if self._dropouts:
            generator = Stream(seed, ("dropout",)).generator()
            for layer in self._dropouts:
                layer.generator = generator

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
        self._compute_on_what_was_learned()

    def private_step(self, x: Tensor, y: Tensor, expected: int, local: LocalSGD, noise: torch.Generator) -> None:
        """One step of SGD on clipped gradients with noise.

        Args:
            x: inputs (B, ...); B may be 0, and then the step is noise alone.
            y: labels (B,).
            expected: number of examples that the sum of gradients and noise is divided by.
            local: its gradient_privacy, weight decay and learning rate.
            noise: the owner's.

        Raises:
            InputError: the network has batch norm.
        """
        rule, layout = local.gradient_privacy, self.model.layout
        assert rule is not None
        if self._clipped is None:
            self._clipped = PerExampleClipper(self.network, self.model.loss, self.dtype)
        total = torch.zeros_like(self.row)
        if len(y):
            views = layout.views(total)
            for name, slope in self._clipped(self._forward, x, y, rule.max_grad_norm).items():
                views[name].copy_(slope)
        trainable = slice(layout.trainable)
        if rule.noise_multiplier:
            drawn = torch.randn(layout.trainable, generator=noise).to(total.device)
            total[trainable].add_(drawn, alpha=rule.noise_multiplier * rule.max_grad_norm)
        if local.weight_decay:
            self.row[trainable].mul_(1 - local.learning_rate * local.weight_decay)
        self.row[trainable].sub_(total[trainable], alpha=local.learning_rate / expected)
        self._compute_on_what_was_learned()

    def _compute_on_what_was_learned(self) -> None:
        """Carry a step over to the copy that the network computes on, and the network's buffers back."""
        if self._computed is not self.row:
            trainable, buffers = slice(self.model.layout.trainable), slice(self.model.layout.trainable, None)
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
