"""Many full-batch steps of networks whose input layer is linear, in the span of the inputs.

A full batch is the same X (B, I) in every step, so the input layer's weight only ever moves by multiples of its rows:
W = W0 + A'X, where A (B, H) adds up the gradients of the layer's outputs Z = XW' = Z0 + KA, with K = XX' (B, B). A step
costs B*B*H multiplications there instead of 2*B*I*H; Z0, K and the last W cost 2*B*I*H + B*B*I, once. It is the same
gradient descent, in another order of summation.
"""

import threading

import torch
from torch import Tensor, nn

from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.engine.backends.vmap_gradients import GradientInputs, VmapGradients, zero_labels
from shoal.engine.local_sgd import LocalSGD
from shoal.models.model import Model


class GramTrainer:
    """Trains owners many at a time, where their network names its input layer.

    Args:
        model: its network has ``input_layer``, the name of the `torch.nn.Linear` that alone sees the inputs, flattened,
            and sees them once.
    """

    def __init__(self, model: Model) -> None:
        network = model.structure()
        self._layer: str = network.input_layer  # pyright: ignore[reportAttributeAccessIssue, reportAssignmentType]
        layer = network.get_submodule(self._layer)
        require(isinstance(layer, nn.Linear), f"the input layer '{self._layer}' must be a torch.nn.Linear")
        assert isinstance(layer, nn.Linear)
        self._inputs, self._outputs = layer.in_features, layer.out_features
        self._weight, self._z = f"{self._layer}.weight", f"{self._layer}.z"
        self._model = model
        self._layout: Layout = model.layout
        self._names = [name for name in model.layout.trainable_names if name != self._weight]
        self._gradients = VmapGradients(self._without_input_layer, model.loss, torch.float32)
        self._networks = threading.local()

    def is_cheaper(self, examples: int, steps: int) -> bool:
        """Whether ``steps`` on a batch of ``examples`` take fewer multiplications this way."""
        once = 2 * self._inputs * self._outputs + examples * self._inputs
        return once + steps * examples * self._outputs < 2 * steps * self._inputs * self._outputs

    def expect(self, shape: torch.Size, steps: int, labels: Tensor, device: torch.device) -> None:
        """Announce stored inputs of a shape (n, B, ...) with labels like these; see `VmapGradients.expect`."""

        def example() -> GradientInputs:
            rows = torch.zeros(shape[0], self._layout.size, device=device)
            weights, rest = self._tensors(rows)
            weights[self._z] = torch.zeros(*shape[:2], self._outputs, device=device)
            y = zero_labels(shape, labels, device)
            return weights, rest, torch.zeros(shape, device=device), y, torch.zeros(shape[:2], device=device)

        self._gradients.expect(shape, (*self._names, self._z), steps, example)

    def train(self, rows: Tensor, x: Tensor, y: Tensor, share: Tensor, steps: int, local: LocalSGD) -> None:
        """Train n owners for ``steps`` full-batch steps, from and into ``rows`` (n, P).

        Args:
            rows: changed in place.
            x: stored inputs (n, B, ...) float32.
            y: labels (n, B).
            share: (n, B), of each example in its owner's mean loss.
            steps: per owner.
            local: learning rate and weight decay.
        """
        flat = x.flatten(2)
        start = self._layout.views(rows)[self._weight]
        z0, kernel = torch.bmm(flat, start.transpose(1, 2)), torch.bmm(flat, flat.transpose(1, 2))
        moved = torch.zeros_like(z0)
        weights, rest = self._tensors(rows)
        scale, shrink = 1.0, 1 - local.learning_rate * local.weight_decay
        for _ in range(steps):
            weights[self._z] = torch.baddbmm(z0, kernel, moved, beta=scale)
            gradients = self._gradients(self._network(), weights, rest, x, y, share)
            if local.weight_decay:
                scale *= shrink
                moved.mul_(shrink)
            moved.sub_(gradients.pop(self._z), alpha=local.learning_rate)
            for name, gradient in gradients.items():
                weights[name].mul_(shrink).sub_(gradient, alpha=local.learning_rate)
        start.baddbmm_(moved.transpose(1, 2), flat, beta=scale)

    def _tensors(self, rows: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The views of rows (n, P) that train step by step, and the others, both without the input layer's weight."""
        rest = self._layout.views(rows)
        del rest[self._weight]
        return {name: rest.pop(name) for name in self._names}, rest

    def _without_input_layer(self) -> nn.Module:
        network = self._model.structure()
        owner, _, leaf = self._layer.rpartition(".")
        bias = network.get_submodule(self._layer).bias
        setattr(network.get_submodule(owner), leaf, _Outputs(bias if isinstance(bias, nn.Parameter) else None))
        return network

    def _network(self) -> nn.Module:
        """This thread's network, for its structure."""
        if not hasattr(self._networks, "network"):
            self._networks.network = self._without_input_layer().train()
        return self._networks.network


class _Outputs(nn.Module):
    """Replaces the input layer and returns the precomputed ``z`` plus the bias."""

    z: Tensor
    bias: nn.Parameter | None

    def __init__(self, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.bias = bias
        self.register_buffer("z", torch.empty(0))

    def forward(self, _: Tensor) -> Tensor:
        return self.z if self.bias is None else self.z + self.bias


def gram_trainer(model: Model, dtype: torch.dtype) -> GramTrainer | None:
    """The trainer of full batches of ``model`` in the span of their inputs; None where there is none."""
    name = getattr(model.structure(), "input_layer", None)
    return GramTrainer(model) if f"{name}.weight" in model.layout.trainable_names and dtype == torch.float32 else None
