"""The gradient under vmap: PyTorch's own numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from shoal.core.randomness import Stream
from shoal.engine.backends import vmap_gradients as module
from shoal.engine.backends.vmap_gradients import gradient_of
from shoal.models import cross_entropy

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(20, 4),
    "layers": lambda: nn.Sequential(nn.Linear(20, 9), nn.ReLU(), nn.Linear(9, 4)),
    # A normalization has one formula of its backward pass with a graph, and another without.
    "normalized": lambda: nn.Sequential(nn.Linear(20, 8), nn.GroupNorm(2, 8), nn.Tanh(), nn.Linear(8, 4)),
    "not all used": lambda: nn.ModuleDict({"used": nn.Linear(20, 4), "unused": nn.Linear(3, 3)}),
}


def problem(
    name: str, owners: int, batch: int
) -> tuple[Callable[..., Tensor], tuple[dict[str, Tensor], Tensor, Tensor]]:
    """A loss, and weights, inputs and labels of some owners."""
    network = NETWORKS[name]()
    draw = Stream(0)("draw").generator()

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        if name == "not all used":
            used = {key.removeprefix("used."): tensor for key, tensor in weights.items() if key.startswith("used.")}
            assert isinstance(network, nn.ModuleDict)
            return cross_entropy(functional_call(network["used"], used, (x,)), y).mean()
        return cross_entropy(functional_call(network, weights, (x,)), y).mean()

    weights = {key: torch.randn(owners, *tensor.shape, generator=draw) for key, tensor in network.named_parameters()}
    x = torch.randn(owners, batch, 20, generator=draw)
    return loss, (weights, x, torch.randint(0, 4, (owners, batch), generator=draw))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("owners", "batch"), [(1, 1), (3, 6), (12, 50)])
def test_the_gradient_has_the_bits_of_torch_func_grad(name: str, owners: int, batch: int) -> None:
    loss, inputs = problem(name, owners, batch)
    ours, theirs = vmap(gradient_of(loss))(*inputs), vmap(grad(loss))(*inputs)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert any(tensor.abs().sum() > 0 for tensor in ours.values())
    assert not any(tensor.requires_grad for tensor in ours.values())


def test_another_version_of_pytorch_uses_torch_func_grad_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "TORCH_VERSION", "2.12.")
    monkeypatch.setattr(module, "grad", lambda function: function)
    loss, _ = problem("layers", 3, 6)
    assert gradient_of(loss) is loss


def test_the_gradient_of_a_loss_without_weights_is_zero() -> None:
    loss, (weights, *rest) = problem("layers", 3, 6)
    del loss

    def of_inputs(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        del weights, y
        return x.sum()

    ours, theirs = vmap(gradient_of(of_inputs))(weights, *rest), vmap(grad(of_inputs))(weights, *rest)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
