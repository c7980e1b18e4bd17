"""A network whose parameters are views of one flat vector, and the optimizer steps on that vector."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.engine.backends.gradient_clipping import PerExampleClipper
from shoal.engine.local_sgd import Forward, GradientPrivacy, LocalSGD
from shoal.models.layers import seeded_dropouts
from shoal.models.model import Model

_CLIP_EPSILON = 1e-6
"""The constant that `torch.nn.utils.clip_grad_norm_` adds to the norm."""


def trained_names(local: LocalSGD, layout: Layout) -> list[str]:
    """Return the names of the tensors that ``local`` trains, in the layout's order."""
    return [name for name in layout.trainable_names if local.tensors is None or name in local.tensors]


class LocalStep:
    """An in-place step of SGD with momentum, weight decay and clipping.

    Args:
        local: the local training, at the round's learning rate.
        rows: the parameters (P,) of one client, or (n, P) of n clients that step together.
        weights: the views of ``rows`` that ``local`` trains, in the layout's order.
        layout: the layout of each row.
        term: the result of `LinearTerm.constants` for the clients in ``rows``; ``None`` adds no term.
    """

    def __init__(
        self,
        local: LocalSGD,
        rows: Tensor,
        weights: list[Tensor],
        layout: Layout,
        term: tuple[Tensor, Tensor] | None,
    ) -> None:
        names = trained_names(local, layout)
        slices = [slice(layout.trainable)] if local.tensors is None else layout.slices(names)
        self._local, self._weights = local, weights
        self._trained = [rows[..., piece] for piece in slices]
        if local.momentum:
            velocity = torch.zeros_like(rows)
            views = layout.views(velocity)
            self._velocities, self._momenta = (
                [velocity[..., piece] for piece in slices],
                [views[name] for name in names],
            )
        self._shrink: float | Tensor = local.weight_decay
        self._constants: list[Tensor] = []
        if term is not None:
            strength, constant = term
            self._shrink = local.weight_decay + (float(strength) if rows.dim() == 1 else strength.to(rows))
            self._constants = [constant[..., piece].to(rows) for piece in slices]
        self._shrinks = isinstance(self._shrink, Tensor) or self._shrink > 0

    def step(self, gradients: Sequence[Tensor], batch: int = 1, active: Tensor | None = None) -> None:
        """Take one step by ``gradients / batch``, with one gradient per trained tensor.

        ``active`` (n, 1) is 1 for clients that still train and 0 for clients that have finished; ``None`` means all 1.
        """
        local, rate = self._local, self._local.learning_rate
        scale = 1 / batch
        if local.clip_norm is not None:
            gradients, scale = self._clipped(gradients, local.clip_norm, batch)
        if local.momentum:
            self._step_with_momentum(gradients, scale, active)
            return
        if self._shrinks:
            shrink = 1 - rate * (self._shrink if active is None else self._shrink * active)
            for trained in self._trained:
                trained.mul_(shrink)
        for trained, constant in zip(self._trained, self._constants, strict=False):
            trained.add_(constant if active is None else constant * active, alpha=rate)
        # A single division rounds only once.
        alpha = rate / batch if local.clip_norm is None else rate * scale
        for weights, gradient in zip(self._weights, gradients, strict=True):
            weights.sub_(gradient, alpha=alpha)

    def _step_with_momentum(self, gradients: Sequence[Tensor], scale: float, active: Tensor | None) -> None:
        for velocity in self._velocities:
            velocity.mul_(self._local.momentum)
        for view, gradient in zip(self._momenta, gradients, strict=True):
            view.add_(gradient, alpha=scale)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            if isinstance(self._shrink, Tensor):
                velocity.add_(trained * self._shrink)
            elif self._shrinks:
                velocity.add_(trained, alpha=self._shrink)
        for velocity, constant in zip(self._velocities, self._constants, strict=False):
            velocity.sub_(constant)
        for velocity, trained in zip(self._velocities, self._trained, strict=True):
            trained.sub_(velocity if active is None else velocity * active, alpha=self._local.learning_rate)

    def _clipped(self, gradients: Sequence[Tensor], bound: float, batch: int) -> tuple[Sequence[Tensor], float]:
        """Return gradients and a factor; their product is ``gradients / batch``, clipped to ``bound`` per client."""
        if self._trained[0].dim() == 1:
            norm = float(torch.stack([gradient.float().norm() for gradient in gradients]).norm()) / batch
            return gradients, min(1.0, bound / (norm + _CLIP_EPSILON)) / batch
        squares = torch.stack([gradient.flatten(1).square().sum(dim=1) for gradient in gradients]).sum(dim=0)
        factors = (bound / (squares.sqrt() + _CLIP_EPSILON)).clamp(max=1)
        return [gradient * factors.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients], 1.0


class TorchStep(LocalStep):
    """The step of one client's `torch.optim` optimizer."""

    def __init__(
        self,
        local: LocalSGD,
        row: Tensor,
        weights: list[Tensor],
        layout: Layout,
        term: tuple[Tensor, Tensor] | None,
    ) -> None:
        super().__init__(local, row, weights, layout, None)
        assert local.optimizer is not None
        self._optimizer = local.optimizer.made(weights, local.learning_rate, local.weight_decay)
        self._strength = 0.0 if term is None else float(term[0])
        # One constant per tensor of the optimizer.
        views = {} if term is None else layout.views(term[1])
        self._constants = [views[name] for name in trained_names(local, layout) if name in views]

    def step(self, gradients: Sequence[Tensor], batch: int = 1, active: Tensor | None = None) -> None:
        """Take one step of the optimizer by ``gradients / batch``; ``active`` must be ``None``."""
        assert active is None
        scale = 1 / batch
        if self._local.clip_norm is not None:
            gradients, scale = self._clipped(gradients, self._local.clip_norm, batch)
        for i, (weights, gradient) in enumerate(zip(self._weights, gradients, strict=True)):
            weights.grad = gradient.to(weights) * scale
            if self._constants:
                weights.grad.add_(weights, alpha=self._strength).sub_(self._constants[i])
        self._optimizer.step()


LONE_EXAMPLE = (
    "local.batch_size: batch norm cannot train on a client's last batch, which has only one example; choose another "
    "batch size or a network without batch norm"
)

_BatchLoss = Callable[[Forward, Tensor, Tensor], Tensor]


class BoundNetwork:
    """A network that shares memory with a parameter vector (the row).

    Writing to the row changes the network, and training the network changes the row. With a ``dtype`` below float32,
    the row keeps float32 and the network computes on a copy in ``dtype``. A network with ``onednn_layout = True``
    receives its inputs in oneDNN's memory layout when it computes in float32 on a CPU.
    """

    def __init__(self, model: Model, device: torch.device, dtype: torch.dtype) -> None:
        layout = model.layout
        self.model = model
        self.dtype = dtype
        self.row = torch.zeros(layout.size, device=device)
        self._computed = self.row if dtype == torch.float32 else self.row.to(dtype)
        self.network = model.structure(device, dtype)
        self._dropouts = seeded_dropouts(self.network)
        self._rates = [layer.p for layer in self._dropouts]
        self._clippers: dict[frozenset[str] | None, PerExampleClipper] = {}
        self._trainable: dict[str, nn.Parameter] = {}
        self._trained: list[nn.Parameter] = []
        self._tensors: frozenset[str] | None = None
        self._names: list[str] = []
        self._buffers: list[Tensor] = []
        self._master = layout.views(self.row)
        self._onednn = (
            getattr(self.network, "onednn_layout", False)
            and device.type == "cpu"
            and dtype == torch.float32
            and torch.backends.mkldnn.is_available()
        )
        # A tensor that layers share has several names and one place in the row.
        named = dict(self.network.named_parameters(remove_duplicate=False))
        aliases = {id(parameter): [name for name in named if named[name] is parameter] for parameter in named.values()}
        for slot, (name, view) in zip(layout.slots, layout.views(self._computed).items(), strict=True):
            if name not in named:
                owner, _, leaf = name.rpartition(".")
                # `data` has a version count of its own: a write to it leaves the saved parameters of a graph valid.
                self.network.get_submodule(owner).register_buffer(leaf, view.data)
                self._buffers.append(view)
                continue
            parameter = nn.Parameter(view, requires_grad=slot.start < layout.trainable)
            if parameter.requires_grad:
                self._trainable[name] = parameter
            for alias in aliases[id(named[name])]:
                owner, _, leaf = alias.rpartition(".")
                setattr(self.network.get_submodule(owner), leaf, parameter)

    def load(self, row: Tensor) -> None:
        """Copy a row (P,) into the network."""
        self.row.copy_(row)
        if self._computed is not self.row:
            self._computed.copy_(self.row)

    def begin(self, row: Tensor, local: LocalSGD, term: tuple[Tensor, Tensor] | None, seed: int) -> None:
        """Start the local training of a client."""
        self.load(row)
        self.network.train()
        self._names = trained_names(local, self.model.layout)
        self._tensors, self._trained = local.tensors, [self._trainable[name] for name in self._names]
        for name, parameter in self._trainable.items():
            parameter.requires_grad_(local.tensors is None or name in local.tensors)
        weights = [self._master[name] for name in self._names]
        kind = LocalStep if local.optimizer is None else TorchStep
        self._optimizer = kind(local, self.row, weights, self.model.layout, term)
        if self._dropouts:
            generator = Stream(seed, ("dropout",)).generator()
            for layer, rate in zip(self._dropouts, self._rates, strict=True):
                layer.generator = generator
                layer.p = rate if local.dropout is None else local.dropout

    def step(self, x: Tensor, y: Tensor, weights: Tensor | None = None, batch_loss: _BatchLoss | None = None) -> None:
        """Take one step on the batch's weighted mean loss, or on ``batch_loss`` if given."""
        self._optimizer.step(self._gradients(x, y, weights, batch_loss))
        self._synchronise()

    def gradient(
        self, row: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None, batch_loss: _BatchLoss | None = None
    ) -> Tensor:
        """Return the gradient (P,) of the training loss at ``row`` (P,), with 0 for tensors that are not trained."""
        self.load(row)
        flat = torch.zeros_like(self.row)
        views = self.model.layout.views(flat)
        for name, gradient in zip(self._names, self._gradients(x, y, weights, batch_loss), strict=True):
            views[name].copy_(gradient)
        return flat

    def _gradients(
        self, x: Tensor, y: Tensor, weights: Tensor | None, batch_loss: _BatchLoss | None
    ) -> Sequence[Tensor]:
        """Return one gradient per trained tensor."""
        try:
            value = self._mean_loss(x, y, weights) if batch_loss is None else batch_loss(self._forward, x, y)
        except ValueError as error:
            # Batch norm has no variance to divide by.
            require("more than 1 value per channel" not in str(error), LONE_EXAMPLE)
            raise
        # Gradients are used once, so they are not stored in `.grad`.
        return torch.autograd.grad(value, self._trained, materialize_grads=True)

    def private_step(
        self,
        x: Tensor,
        y: Tensor,
        expected: int,
        rule: GradientPrivacy,
        noise: torch.Generator,
        multiplicity: int = 1,
    ) -> None:
        """Take one step on clipped gradients with noise.

        Args:
            x: inputs (B * M, ...), with the M copies of an example in consecutive rows; with B = 0 the step adds only
                noise.
            y: labels (B * M,).
            expected: the nominal batch size, which divides the sum of gradients and noise.
            rule: the clipping bound and the noise multiplier.
            multiplicity: the number of copies M per example.

        Raises:
            InputError: the network has batch norm or changes other buffers in training.
        """
        layout, before = self.model.layout, [buffer.clone() for buffer in self._buffers]
        # Each set of trained tensors needs its own clipper.
        clipper = self._clippers.get(self._tensors)
        if clipper is None:
            clipper = self._clippers[self._tensors] = PerExampleClipper(self.network, self.model.loss, self.dtype)
        total = torch.zeros_like(self.row)
        views = layout.views(total)
        if len(y):
            for name, gradient in clipper(self._forward, x, y, rule.max_grad_norm, multiplicity).items():
                views[name].copy_(gradient)
        if rule.noise_multiplier:
            drawn = torch.randn(layout.trainable, generator=noise).to(total.device)
            total[: layout.trainable].add_(drawn, alpha=rule.noise_multiplier * rule.max_grad_norm)
        require(
            all(map(torch.equal, self._buffers, before)),
            "DP-SGD cannot protect buffers that change in training; choose a network with constant buffers",
        )
        self._optimizer.step([views[name] for name in self._names], expected)
        self._synchronise()

    def _synchronise(self) -> None:
        """Copy parameters from the row to the copy in ``dtype``, and buffers from the copy to the row."""
        if self._computed is not self.row:
            trainable, buffers = slice(self.model.layout.trainable), slice(self.model.layout.trainable, None)
            self.row[buffers] = self._computed[buffers].float()
            self._computed[trainable].copy_(self.row[trainable])

    def outputs(self, x: Tensor) -> Tensor:
        """Return the network's outputs (B, C) in float32 for inputs x, in evaluation mode."""
        self.network.eval()
        with torch.inference_mode():
            return self._forward(x)

    def _mean_loss(self, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        losses = self.model.loss(self._forward(x), y)
        return losses.mean() if weights is None else (losses * weights).mean()

    def _forward(self, x: Tensor) -> Tensor:
        if self._onednn:
            return self.network(x.to_mkldnn()).to_dense()
        return self.network(x).float()
