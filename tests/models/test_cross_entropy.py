"""The cross-entropy against PyTorch's own, bit for bit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, vmap
from torch.nn import functional

from shoal.core.randomness import Stream
from shoal.models import cross_entropy


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
