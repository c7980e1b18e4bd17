"""Networks that need images in the order of their axes, because they call ``view`` on what a convolution gives.

Convolutions are fast on images that are stored with the channels last, and so is what they give. ``x.view(-1, 400)``
then is an error of PyTorch's, where ``flatten`` and ``reshape`` copy; it is in many tutorials.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

_ERROR = "view size is not compatible"
"""What PyTorch says."""


class AsOrdered:
    """A hook before a network's forward that finds out once whether the network takes images with the channels last.

    If it does not, the images and what its convolutions give are copied into the order of their axes. It is tried on
    the first batch, in evaluation mode and without gradients, so that no random number is drawn and no buffer changes.
    """

    def __init__(self) -> None:
        self._needed: bool | None = None

    def __call__(self, network: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """The arguments to be passed; the signature is PyTorch's."""
        if self._needed is None:
            self._needed = _fails(network, args, kwargs)
            if self._needed:
                for layer in _convolutions(network):
                    layer.register_forward_hook(_ordered_output)
        return _mapped(Tensor.contiguous, args, kwargs) if self._needed else (args, kwargs)


def take_images(network: nn.Module) -> nn.Module:
    """Let a network with convolutions take images that are stored with the channels last; it is returned."""
    if _convolutions(network):
        network.register_forward_pre_hook(AsOrdered(), with_kwargs=True)
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
        return _ERROR in str(error)
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


def _ordered_output(_: nn.Module, __: object, output: Tensor) -> Tensor:
    return output.contiguous()
