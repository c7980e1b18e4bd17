"""Layers: reproducible dropout, checks for layers that cannot be trained in threads, and the memory order of images."""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.errors import require


class SeededDropout(nn.Module):
    """A dropout layer that draws its masks from its own ``generator``, so results do not depend on threads.

    In training, each input element is set to 0 with probability ``p``, and otherwise scaled by 1 / (1 - p). The engine
    sets ``generator`` before training; training without a generator is an error.

    Args:
        p: the dropout probability, in [0, 1).

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
        """Apply dropout to ``x``; evaluation mode returns ``x`` unchanged."""
        if not self.training or self.p == 0:
            return x
        require(
            self.generator is not None,
            "SeededDropout has no generator; train the network with the engine's loop backend",
        )
        kept = torch.rand(x.shape, generator=self.generator) >= self.p
        mask = kept.to(dtype=x.dtype, device=x.device) / (1 - self.p)
        if x.is_mkldnn:
            return (x.to_dense() * mask).to_mkldnn()
        return x * mask

    def extra_repr(self) -> str:
        """Return the arguments for the layer's ``repr``."""
        return f"p={self.p}"


def seeded_dropouts(network: nn.Module) -> list[SeededDropout]:
    """Return the dropout layers of ``network`` with p > 0, in the order of the network's modules."""
    return [module for module in network.modules() if isinstance(module, SeededDropout) and module.p > 0]


def changing_buffers(network: nn.Module) -> set[str]:
    """Return the names of the buffers that training changes.

    Training changes the statistics of batch and instance norm, the vectors of spectral norm, and the buffers that a
    user's own module names in ``changing_buffers``.
    """
    kinds, names = (nn.modules.batchnorm._NormBase, nn.utils.parametrizations._SpectralNorm), set[str]()
    for name, module in network.named_modules():
        own = module._buffers if isinstance(module, kinds) else getattr(module, "changing_buffers", ())
        names |= {f"{name}.{leaf}".removeprefix(".") for leaf in own}
    return names


def mixes_examples(module: nn.Module) -> bool:
    """Return whether a layer is batch norm, which mixes examples; instance norm does not."""
    norms = nn.modules.batchnorm._NormBase, nn.modules.instancenorm._InstanceNorm
    return isinstance(module, norms[0]) and not isinstance(module, norms[1])


def require_torch_settings() -> None:
    """Raise `InputError` if PyTorch's default type is not float32, or inference mode is on."""
    default = str(torch.get_default_dtype()).removeprefix("torch.")
    require(
        default == "float32",
        f"PyTorch's default dtype must be float32 (got {default}); call torch.set_default_dtype(torch.float32)",
    )
    require(
        not torch.is_inference_mode_enabled(),
        "models cannot be trained inside torch.inference_mode(); train outside the block",
    )


def require_trainable(network: nn.Module) -> None:
    """Raise `InputError` if a network cannot be trained in threads with a float32 parameter vector.

    Raises:
        InputError: the network is from torch.jit; a layer draws from PyTorch's global generator, has no size yet, or is
            batch norm without a momentum; a parameter is not float32; no parameter is trainable; or
            `require_torch_settings` fails.
    """
    require_torch_settings()
    require(
        not isinstance(network, torch.jit.ScriptModule),
        "the network must be built without torch.jit (got a ScriptModule)",
    )
    for name, module in network.named_modules():
        layer = f"layer '{name}' ({type(module).__name__})" if name else f"the network ({type(module).__name__})"
        require(
            not any(isinstance(p, nn.UninitializedParameter) for p in module.parameters(recurse=False)),
            f"{layer} is lazy and has no size yet; give the layer's input size",
        )
        advice = _instead_of_randomness(module)
        require(
            advice is None,
            f"{layer} draws from PyTorch's global generator, which threads share; {advice}",
        )
        cumulative = isinstance(module, nn.modules.batchnorm._NormBase) and module.momentum is None
        require(
            not cumulative,
            f"'momentum' of the layer '{name}' must be a number (got None)",
        )
    for name, parameter in network.named_parameters():
        advice = (
            "store the real and the imaginary part separately"
            if parameter.is_complex()
            else "remove .double() or .half()"
        )
        require(
            parameter.dtype == torch.float32,
            f"parameter '{name}' must be float32 (got {str(parameter.dtype).removeprefix('torch.')}); {advice}",
        )
    require(
        any(p.requires_grad for p in network.parameters()),
        "the network must have at least one trainable parameter (got none)",
    )


def _instead_of_randomness(module: nn.Module) -> str | None:
    """Return advice on a layer that draws from PyTorch's global generator in training, or None for other layers."""
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0:
        return f"set the layer's dropout to 0 (got {module.dropout:g}) and add torch.nn.Dropout, which Shoal seeds"
    dropping = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
    if dropping or isinstance(module, nn.RReLU):
        return "remove the layer, or use torch.nn.Dropout, which Shoal seeds"
    return None


class OrderedAdapter:
    """A forward pre-hook that reorders images for networks that cannot take channels-last images.

    Convolutions on channels-last images are fast and return channels-last images, for which ``x.view(-1, 400)`` is an
    error. The hook runs the network on the first batch in evaluation mode without gradients. If the network raises an
    error, the hook makes all images and the convolutions' results contiguous.
    """

    def __init__(self) -> None:
        self._needed: bool | None = None

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Return the arguments for the network."""
        if self._needed is None:
            self._needed = _fails(network, args, kwargs)
            if self._needed:
                for layer in _convolutions(network):
                    layer.register_forward_hook(_order_output)
        return _mapped(Tensor.contiguous, args, kwargs) if self._needed else (args, kwargs)


def take_images(network: nn.Module) -> nn.Module:
    """Register an `OrderedAdapter` on a network with convolutions, and return the network."""
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
