"""Layers: dropout with a generator of its own, layers that cannot be trained by threads, and the order of images."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.errors import require


class SeededDropout(nn.Module):
    """In training, sets each input element to 0 with probability ``p`` and scales the others by 1 / (1 - p).

    PyTorch's own dropout uses the global generator, so its masks would depend on the number of threads. This one uses
    ``generator``, which the engine sets before it trains a client; without it training is an error.

    Args:
        p: probability of 0, in [0, 1).

    Example:
        >>> import torch
        >>> from shoal.models import SeededDropout
        >>> layer = SeededDropout(0.5)
        >>> layer.generator = torch.Generator().manual_seed(0)
        >>> sorted(set(layer(torch.ones(1000)).tolist())), layer.eval()(torch.ones(2)).tolist()
        ([0.0, 2.0], [1.0, 1.0])
    """

    generator: torch.Generator | None = None

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Outputs of the shape of ``x``; in evaluation mode ``x`` itself."""
        if not self.training or self.p == 0:
            return x
        require(self.generator is not None, "a network with SeededDropout trains only in the engine's loop backend")
        kept = torch.rand(x.shape, generator=self.generator) >= self.p
        mask = kept.to(dtype=x.dtype, device=x.device) / (1 - self.p)
        if x.is_mkldnn:
            return (x.to_dense() * mask).to_mkldnn()
        return x * mask

    def extra_repr(self) -> str:
        """The arguments in the layer's ``repr``."""
        return f"p={self.p}"


def seeded_dropouts(network: nn.Module) -> list[SeededDropout]:
    """The dropout layers of ``network`` with p > 0, in the order of its modules."""
    return [module for module in network.modules() if isinstance(module, SeededDropout) and module.p > 0]


def changing_buffers(network: nn.Module) -> set[str]:
    """The names of the buffers that training changes: the statistics of batch and instance norm, the vectors of
    spectral norm, and those that a module of one's own names in its attribute ``changing_buffers``.
    """
    kinds, names = (nn.modules.batchnorm._NormBase, nn.utils.parametrizations._SpectralNorm), set[str]()
    for name, module in network.named_modules():
        own = module._buffers if isinstance(module, kinds) else getattr(module, "changing_buffers", ())
        names |= {f"{name}.{leaf}".removeprefix(".") for leaf in own}
    return names


def mixes_examples(module: nn.Module) -> bool:
    """Whether a layer is batch norm. Instance norm normalises each example alone."""
    norms = nn.modules.batchnorm._NormBase, nn.modules.instancenorm._InstanceNorm
    return isinstance(module, norms[0]) and not isinstance(module, norms[1])


def require_torch_settings() -> None:
    """Raise `InputError` where PyTorch is set to another default type than float32, or to inference mode."""
    default = str(torch.get_default_dtype()).removeprefix("torch.")
    require(
        default == "float32",
        f"PyTorch's default dtype is {default}, but models are vectors of float32; call "
        "torch.set_default_dtype(torch.float32) before",
    )
    require(
        not torch.is_inference_mode_enabled(),
        "nothing can be trained inside torch.inference_mode(), which computes no gradients; leave the block before",
    )


def require_trainable(network: nn.Module) -> None:
    """Raise `InputError` where a network cannot be trained as vectors of float32 by threads, whatever its inputs.

    That is a network of torch.jit; with a layer that uses PyTorch's global generator (other dropout than `nn.Dropout`)
    or has no size yet; with batch norm without a momentum; with parameters of another type; or without any to train.
    Nor can any network be under other settings of PyTorch (`require_torch_settings`).
    """
    require_torch_settings()
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
    """Advice on a layer of PyTorch that draws from its global generator in training; None: it does not."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0:
        return f"set its dropout to 0 (it is {module.dropout:g}); a torch.nn.Dropout elsewhere is seeded by Shoal"
    dropping = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    if dropping or isinstance(module, nn.RReLU):
        return "leave it out, or use torch.nn.Dropout, which Shoal seeds"
    return None


class OrderedAdapter:
    """A hook before a network's forward that finds out once whether the network takes images with the channels last.

    Convolutions are fast on images that are stored so, and give such images too, on which ``x.view(-1, 400)`` is an
    error. If the network calls that, the images and what its convolutions give are copied into the order of their axes.
    It is tried on the first batch, in evaluation mode and without gradients, so that no random number is drawn and no
    buffer changes.
    """

    def __init__(self) -> None:
        self._needed: bool | None = None

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments to be passed; the signature is PyTorch's."""
        if self._needed is None:
            self._needed = _fails(network, args, kwargs)
            if self._needed:
                for layer in _convolutions(network):
                    layer.register_forward_hook(_order_output)
        return _mapped(Tensor.contiguous, args, kwargs) if self._needed else (args, kwargs)


def take_images(network: nn.Module) -> nn.Module:
    """Let a network with convolutions take images that are stored with the channels last; it is returned."""
    if _convolutions(network):
        network.register_forward_pre_hook(OrderedAdapter(), with_kwargs=True)
    return network


def _convolutions(network: nn.Module) -> list[nn.Module]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)]


def _fails(network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    training = [module for module in network.modules() if module.training]
    hooks = [(module, module._forward_hooks, module._forward_pre_hooks) for module in network.modules()]
    try:
        with torch.no_grad():
            network.eval()
            for module, *_ in hooks:  # Those of others count or keep what passes.
                module._forward_hooks, module._forward_pre_hooks = OrderedDict(), OrderedDict()
            args, kwargs = _mapped(_channels_last, args, kwargs)
            network.forward(*args, **kwargs)
    except Exception as error:  # Others are those of the call that follows.
        return "view size is not compatible" in str(error)
    finally:
        for module, after, before in hooks:
            module._forward_hooks, module._forward_pre_hooks = after, before
        for module in training:
            module.training = True
    return False


def _channels_last(image: Tensor) -> Tensor:
    # The copy's strides say "channels last" even for one channel, where a tensor counts as of both orders.
    return image.movedim(1, -1).clone(memory_format=torch.contiguous_format).movedim(-1, 1)


def _mapped(change: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:  # noqa: ANN401
    def changed(value: object) -> object:
        return change(value) if isinstance(value, Tensor) and value.dim() == 4 else value

    return tuple(changed(value) for value in args), {name: changed(value) for name, value in kwargs.items()}


def _order_output(_: nn.Module, __: object, output: Tensor) -> Tensor:
    return output.contiguous()
