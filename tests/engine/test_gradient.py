"""The gradient under vmap: PyTorch's own numbers."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from shoal.core.randomness import Stream
from shoal.engine.backends import gradient as module
from shoal.engine.backends.gradient import gradient_of
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
            used = {key.removeprefix("used."): each for key, each in weights.items() if key.startswith("used.")}
            assert isinstance(network, nn.ModuleDict)
            return cross_entropy(functional_call(network["used"], used, (x,)), y).mean()
        return cross_entropy(functional_call(network, weights, (x,)), y).mean()

    weights = {key: torch.randn(owners, *each.shape, generator=draw) for key, each in network.named_parameters()}
    x = torch.randn(owners, batch, 20, generator=draw)
    return loss, (weights, x, torch.randint(0, 4, (owners, batch), generator=draw))


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("owners", "batch"), [(1, 1), (3, 6), (12, 50)])
def test_it_has_the_bits_of_pytorch_s_own(name: str, owners: int, batch: int) -> None:
    loss, given = problem(name, owners, batch)
    ours, theirs = vmap(gradient_of(loss))(*given), vmap(grad(loss))(*given)
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert any(each.abs().sum() > 0 for each in ours.values())
    assert not any(each.requires_grad for each in ours.values())


def test_in_a_version_of_pytorch_that_is_not_known_no_internal_function_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KNOWN", "2.12.")
    monkeypatch.setattr(module, "grad", lambda function: function)
    loss, _ = problem("layers", 3, 6)
    assert gradient_of(loss) is loss


def test_of_a_loss_that_depends_on_no_weight_it_is_zero() -> None:
    loss, (weights, *rest) = problem("layers", 3, 6)
    del loss

    def of_inputs(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        del weights, y
        return x.sum()

    ours, theirs = vmap(gradient_of(of_inputs))(weights, *rest), vmap(grad(of_inputs))(weights, *rest)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)


def theirs(outputs: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, labels, reduction="none")


@pytest.mark.parametrize("transformed", [lambda function: function, vmap], ids=["alone", "vmap"])
def test_cross_entropy_has_the_bits_of_pytorch_s(transformed: Callable[..., Callable[..., Tensor]]) -> None:
    draw = Stream(1)("draw").generator()
    shape = (5, 30) if transformed is vmap else (30,)
    outputs, labels = 9 * torch.randn(*shape, 7, generator=draw), torch.randint(0, 7, shape, generator=draw)
    share = torch.rand(shape, generator=draw)
    assert torch.equal(transformed(cross_entropy)(outputs, labels), transformed(theirs)(outputs, labels))

    def gradient(loss: Callable[..., Tensor]) -> Tensor:
        leaf = outputs.clone().requires_grad_()
        return torch.autograd.grad((transformed(loss)(leaf, labels) * share).sum(), leaf)[0]

    assert torch.equal(gradient(cross_entropy), gradient(theirs))
    assert gradient(cross_entropy).abs().sum() > 0
