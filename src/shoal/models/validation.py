"""Check that a model can be trained on examples, before any training."""

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream, seed_libraries
from shoal.models.layers import require_torch_settings, seeded_dropouts
from shoal.models.model import Loss, Model, ModelMetric, changes_frozen, cross_entropy


def require_fits(model: Model, x: Tensor, y: Tensor, classes: int | None) -> None:
    """Raise `InputError` unless ``model`` can be trained on inputs x (B, ...) with labels y (B,) in 0..classes - 1.

    B is small, at least 1. The network must return a tensor of shape (B, at least classes), whatever B, and the loss
    and the metric one value per example. In a regression ``classes`` is None, y is (B, d), and outputs are (B, ...), of
    `squared_error` (B, d). The network must leave its inputs unchanged, draw random numbers in `nn.Dropout` alone,
    which Shoal seeds by client and round, and keep its memory in buffers of floats.
    """
    require_torch_settings()
    network, untouched = model.structure().eval(), x.clone()
    outputs = _outputs(network, untouched)
    _require_shape(outputs, y, classes)
    require(
        classes is not None or model.loss is not cross_entropy,
        "cross-entropy is not a loss of a regression; give another, such as Model(MyNetwork, shoal.squared_error)",
    )
    _require_per_example("loss", model.loss, outputs.float(), y, '; give it reduction="none"')
    _require_per_example("metric", model.metric_for(classes), outputs.float(), y)
    for batch in (x[:1], torch.cat([x, x])):
        shape, expected = tuple(_outputs(network, batch).shape), (len(batch), *outputs.shape[1:])
        require(
            shape == expected,
            f"the network must give outputs of shape {expected} for a batch of {len(batch)}, as for others; got "
            f"{shape}",
        )
    # Batch norm cannot train on one example.
    twice = (x, y) if len(x) > 1 else (torch.cat([x, x]), torch.cat([y, y]))
    _require_trains(model, *twice)
    # The counter of a tensor that nobody wrote to.
    require(untouched._version == 0, _changes_inputs("the network in evaluation mode"))
    require(
        torch.allclose(_outputs(network, x), outputs, equal_nan=True),
        "the network gives other outputs for the same examples when it is called again, even in evaluation mode; it "
        "must remember nothing but in its buffers, and draw no random numbers",
    )


def _outputs(network: nn.Module, x: Tensor) -> Tensor:
    try:
        with torch.no_grad(), seed_libraries(Stream(0, ("global generator",))):
            outputs = network(x)
    except InputError:
        raise
    except Exception as error:
        several = isinstance(error, TypeError) and "required positional argument" in str(error)
        advice = (
            "; several inputs are packed into one tensor, which forward or a Model's 'inputs' takes apart"
            if several
            else ""
        )
        raise InputError(
            f"the model cannot take examples of shape {tuple(x.shape[1:])} in a batch of {len(x)}: "
            f"{_first_line(error)}{advice}"
        ) from error
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise InputError(
            f"the network must give one tensor (examples, classes); got {kind}; say which tensor of it the outputs "
            "are, such as Model(MyNetwork, outputs=lambda result: result[0]), or result.logits"
        )
    return outputs


def _require_shape(outputs: Tensor, y: Tensor, classes: int | None) -> None:
    least = y.shape[1] if classes is None else classes
    have = f"have {classes} classes" if classes is not None else f"are {least} {'number' if least == 1 else 'numbers'}"
    one_for_each = outputs.dim() > 0 and len(outputs) == len(y)
    # In a regression labels may hold more than the targets, such as a mask; one output alone would be broadcast.
    wide = outputs.dim() == 2 and outputs.shape[1] >= least
    wide = wide or (classes is None and outputs.dim() > 1 and outputs[0].numel() > 1)
    require(
        one_for_each and wide,
        f"the labels {have}, but the model gives outputs of shape {tuple(outputs.shape[1:])} for an example",
    )


def _require_per_example(name: str, function: Loss | ModelMetric, outputs: Tensor, y: Tensor, advice: str = "") -> None:
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


def _require_trains(model: Model, x: Tensor, y: Tensor) -> None:
    """Raise unless a step can be computed that depends on the examples, the parameters and the seeds alone."""
    network, inputs = model.structure().train(), x.clone()
    generator = torch.Generator().manual_seed(0)
    for layer in seeded_dropouts(network):
        layer.generator = generator
    before = {name: (buffer, buffer.clone()) for name, buffer in network.named_buffers()}
    watched = {name: _watch(network, state) for name, state in _GENERATORS.items()}
    changing = _watch(network, lambda: inputs._version)
    try:
        with seed_libraries(Stream(0, ("global generator",))):
            outputs: Tensor = network(inputs)
            if outputs.requires_grad:
                loss = model.loss(outputs.float(), y).mean()
                trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
                torch.autograd.grad(loss, trained, materialize_grads=True)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"the model cannot be trained on a batch of {len(x)}: {_first_line(error)}") from error
    require(not changing, _changes_inputs("".join(changing[:1])))
    for name, drawing in watched.items():
        require(
            not drawing,
            f"{''.join(drawing[:1])} draws from {name} in training, so results would depend on the number of threads; "
            "use torch.nn.Dropout, which Shoal seeds, or no random numbers (in attention, a dropout of 0, as "
            "attention_probs_dropout_prob=0 of transformers)",
        )
    require(
        outputs.requires_grad,
        "no gradient reaches the network's parameters, as under torch.no_grad or detach, so nothing would be trained",
    )
    for name, now in network.named_buffers():
        if name not in before:
            continue
        was, copy = before[name]
        require(
            now is was,
            f"the network replaces its buffer '{name}' by another tensor in training, which no client's model "
            f"would know of; write into it, as self.{name}.copy_(...) does",
        )
        if name in model.frozen and not torch.equal(now, copy):
            now.copy_(copy)
            raise InputError(changes_frozen(name))
        owner = network.get_submodule(name.rpartition(".")[0])
        # Batch norm's count of batches matters without a momentum alone.
        kept = now.is_floating_point() or isinstance(owner, nn.modules.batchnorm._NormBase)
        require(
            kept or torch.equal(now, copy),
            f"the network changes its buffer '{name}' of {str(now.dtype).removeprefix('torch.')} in training, but "
            "models are vectors of float32; make it a buffer of floats",
        )
    model.require_frozen()


def _changes_inputs(who: str) -> str:
    return (
        f"{who} changes the network's inputs in place, which other models read too; leave inplace=True out, or copy "
        "them first (x = x.clone())"
    )


def _watch(network: nn.Module, state: Callable[[], object]) -> list[str]:
    """A list to which running ``network`` adds the layers whose call changes ``state()``, the innermost ones first."""
    before: list[object] = []
    changing: list[str] = []

    def leave(name: str, module: nn.Module, _: object, __: object) -> None:
        if state() != before.pop():
            kind = type(module).__name__
            changing.append(f"layer '{name}' ({kind})" if name else f"the network ({kind})")

    for name, module in network.named_modules():
        module.register_forward_pre_hook(lambda *_: before.append(state()))
        module.register_forward_hook(partial(leave, name))
    return changing


def _numpy_state() -> object:
    state = np.random.get_state(legacy=False)  # noqa: NPY002 (whether others use it)
    return state["state"].pop("key").tobytes(), state


_GENERATORS: dict[str, Callable[[], object]] = {
    "PyTorch's global generator": lambda: torch.get_rng_state().numpy().tobytes(),
    "Python's random": random.getstate,
    "NumPy's global generator": _numpy_state,
}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
