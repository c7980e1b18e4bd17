"""What a network must be made of, by its layers and tensors alone."""

import torch
from torch import nn

from shoal.core.errors import require


def require_trainable(network: nn.Module) -> None:
    """Raise `InputError` where a network cannot be trained as vectors of float32 by threads, whatever its inputs.

    So it is with layers that use PyTorch's global generator (other dropout than `nn.Dropout`), that have no size yet,
    with batch norm without a momentum, parameters of another type, and without trainable parameters.
    """
    require(
        not isinstance(network, torch.jit.ScriptModule),
        "the network is compiled by torch.jit, whose parameters cannot be exchanged; build it without torch.jit",
    )
    for name, module in network.named_modules():
        layer = f"layer '{name}' ({type(module).__name__})" if name else f"the network ({type(module).__name__})"
        require(
            not any(isinstance(p, nn.UninitializedParameter) for p in module.parameters(recurse=False)),
            f"{layer} has no size before it has seen data; give its size",
        )
        advice = _instead_of_randomness(module)
        require(
            advice is None,
            f"{layer} draws from PyTorch's global generator, so results would depend on the number of threads; "
            f"{advice}",
        )
        cumulative = isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None
        require(
            not cumulative,
            f"layer '{name}' averages over all its batches, which no two clients share; give it a momentum",
        )
    for name, parameter in network.named_parameters():
        advice = "keep its real and its imaginary part" if parameter.is_complex() else "leave .double() or .half() out"
        require(
            parameter.dtype == torch.float32,
            f"parameter '{name}' is {str(parameter.dtype).removeprefix('torch.')}, but models are vectors of float32; "
            f"{advice}",
        )
    require(any(p.requires_grad for p in network.parameters()), "the network has no trainable parameters")


def _instead_of_randomness(module: nn.Module) -> str | None:
    """What to do about a layer of PyTorch that draws from its global generator in training; None: it does not."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0:
        return f"set its dropout to 0 (it is {module.dropout:g}); a torch.nn.Dropout elsewhere is seeded by Shoal"
    dropping = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    if dropping or isinstance(module, nn.RReLU):
        return "leave it out, or use torch.nn.Dropout, which Shoal seeds"
    return None
