"""Whether a model can be trained on given examples, asked before any training."""

import copy

import torch
from torch import Tensor, nn

from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream, seeded
from shoal.models.dropout import seeded_dropouts
from shoal.models.model import Model


def require_fits(model: Model, x: Tensor, y: Tensor, classes: int) -> None:
    """Raise `InputError` unless ``model`` can be trained on inputs x (B, ...) with labels y (B,) in 0..classes - 1.

    B is small, at least 1. The network must give a tensor of shape (B, at least classes), and the loss one value per
    example. In training it may draw random numbers in `nn.Dropout` only, which Shoal seeds by client and round.
    """
    network = model.network().eval()
    try:
        with torch.inference_mode():
            outputs = network(x)
    except Exception as error:
        raise InputError(
            f"the model cannot take examples of shape {tuple(x.shape[1:])}: {_first_line(error)}"
        ) from error
    if not isinstance(outputs, Tensor):
        raise InputError(f"the network must give one tensor (examples, classes); got {type(outputs).__name__}")
    require(
        outputs.dim() == 2 and len(outputs) == len(y) and outputs.shape[1] >= classes,
        f"the labels have {classes} classes, but the model gives outputs of shape {tuple(outputs.shape[1:])} for an "
        "example",
    )
    try:
        loss = model.loss(outputs.float(), y)
    except Exception as error:
        raise InputError(f"the model's loss cannot be computed on its outputs: {_first_line(error)}") from error
    shape = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
    require(
        shape == (len(y),),
        f"the model's loss must be one value per example, of shape ({len(y)},) for {len(y)} examples; got {shape}; "
        'give it reduction="none"',
    )
    require(
        not _draws_in_training(network, x),
        "the network draws from PyTorch's global generator in training, as functional.dropout does, so results would "
        "depend on the number of threads; use torch.nn.Dropout, which Shoal seeds",
    )


def _draws_in_training(network: nn.Module, x: Tensor) -> bool:
    """Whether the training outputs depend on PyTorch's global generator."""
    outputs = []
    for seed in range(2):
        trained = copy.deepcopy(network).train()
        for layer in seeded_dropouts(trained):
            layer.generator = torch.Generator().manual_seed(0)
        try:
            with seeded(Stream(seed, ("global generator",))), torch.no_grad():
                outputs.append(trained(x))
        except ValueError:
            # Batch norm cannot train on one example.
            return False
    return not torch.equal(*outputs)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
