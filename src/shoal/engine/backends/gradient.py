"""The gradient of a function of tensors, without what `torch.func.grad` loads for PyTorch's compiler."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch._functorch import eager_transforms  # pyright: ignore[reportMissingTypeStubs]
from torch.func import grad

TORCH_VERSION = "2.13."
"""The version of PyTorch whose internal functions these are; a test compares the bits."""


def gradient_of(loss: Callable[..., Tensor]) -> Callable[..., dict[str, Tensor]]:
    """The gradient of ``loss(weights, *rest)``, a number, by the tensors ``weights`` (a dictionary); it works under
    `torch.vmap`, and gives the bits of ``torch.func.grad(loss)``.

    It is `torch.func.grad` of torch 2.13, with the same functions of PyTorch in the same order, but for one step: there
    the backward pass runs in a context of `torch._dynamo`, PyTorch's compiler, to say that nothing is compiled. To load
    that takes 0.9 s of processor time and 55 MiB, more than a short run needs for everything else. In another version
    of PyTorch it is `torch.func.grad` itself.
    """
    if not torch.__version__.startswith(TORCH_VERSION):
        return grad(loss)

    def gradient(weights: dict[str, Tensor], *rest: object) -> dict[str, Tensor]:
        with eager_transforms.grad_increment_nesting() as level, torch.enable_grad():
            inside, *others = eager_transforms._wrap_all_tensors((weights, *rest), level)
            for tensor in inside.values():
                eager_transforms._create_differentiable(tensor, level)
            outcome = loss(inside, *others)
            if outcome.requires_grad:
                # As there: with a graph of the backward pass, since some of its formulas are others without one.
                gradients = torch.autograd.grad(
                    outcome, [*inside.values()], create_graph=True, allow_unused=True, materialize_grads=True
                )
            else:  # The loss depends on no weight.
                gradients = [torch.zeros_like(tensor) for tensor in inside.values()]
            plain = map(partial(eager_transforms._undo_create_differentiable, level=level), gradients)
            return dict(zip(weights, plain, strict=True))

    return gradient
