"""Whether a model can be trained on given examples, asked before any training."""

import copy

import torch
from torch import Tensor, nn

from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream, seeded
from shoal.models.dropout import seeded_dropouts
from shoal.models.model import Loss, Metric, Model, cross_entropy


def require_fits(model: Model, x: Tensor, y: Tensor, classes: int | None) -> None:
    """Raise `InputError` unless ``model`` can be trained on inputs x (B, ...) with labels y (B,) in 0..classes - 1.

    B is small, at least 1. The network must give a tensor of shape (B, at least classes), and the loss and the metric
    one value per example. In a regression ``classes`` is None, y is (B, d), and outputs are (B, at least d). In
    training the network may draw random numbers in `nn.Dropout` only, which Shoal seeds by client and round.
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
    least = y.shape[1] if classes is None else classes
    have = f"have {classes} classes" if classes is not None else f"are {least} {'number' if least == 1 else 'numbers'}"
    require(
        outputs.dim() == 2 and len(outputs) == len(y) and outputs.shape[1] >= least,
        f"the labels {have}, but the model gives outputs of shape {tuple(outputs.shape[1:])} for an example",
    )
    require(
        classes is not None or model.loss is not cross_entropy,
        "cross-entropy is no loss of a regression; give another, such as Model(MyNetwork, shoal.squared_error)",
    )
    _require_per_example("loss", model.loss, outputs.float(), y, '; give it reduction="none"')
    _require_per_example("metric", model.metric_for(classes), outputs.float(), y)
    require(
        not _draws_in_training(network, x),
        "the network draws from PyTorch's global generator in training, as functional.dropout does, so results would "
        "depend on the number of threads; use torch.nn.Dropout, which Shoal seeds",
    )


def _require_per_example(name: str, function: Loss | Metric, outputs: Tensor, y: Tensor, advice: str = "") -> None:
    try:
        values = function(outputs, y)
    except Exception as error:
        raise InputError(f"the model's {name} cannot be computed on its outputs: {_first_line(error)}") from error
    shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
    require(
        shape == (len(y),),
        f"the model's {name} must be one value per example, of shape ({len(y)},) for {len(y)} examples; got "
        f"{shape}{advice}",
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
