"""Checks that a model can be trained on examples, before training."""

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
    """Raise `InputError` unless ``model`` can be trained on a small batch of inputs x (B, ...) and labels y (B,).

    The network must return outputs of shape (B, at least ``classes``) for every batch size B >= 1; in a regression,
    where ``classes`` is None and y is (B, d), outputs are (B, ...). The loss and the metric must return one value per
    example. The network must not change its inputs. The network may draw random numbers only in `nn.Dropout`, and may
    keep state only in float buffers.
    """
    require_torch_settings()
    network, untouched = model.structure().eval(), x.clone()
    outputs = _outputs(network, untouched)
    _require_shape(outputs, y, classes)
    require(
        classes is not None or model.loss is not cross_entropy,
        "a Model's loss must not be cross_entropy in a regression; use a loss such as shoal.squared_error",
    )
    _require_per_example("loss", model.loss, outputs.float(), y, '; give it reduction="none"')
    _require_per_example("metric", model.metric_for(classes), outputs.float(), y)
    for batch in (x[:1], torch.cat([x, x])):
        shape, expected = tuple(_outputs(network, batch).shape), (len(batch), *outputs.shape[1:])
        require(
            shape == expected,
            f"the network must return outputs of shape {expected} for a batch of {len(batch)} examples (got {shape})",
        )
    # Batch norm cannot train on one example.
    twice = (x, y) if len(x) > 1 else (torch.cat([x, x]), torch.cat([y, y]))
    _require_trains(model, *twice)
    # The counter of a tensor that nobody wrote to.
    require(untouched._version == 0, _changes_inputs("the network in evaluation mode"))
    require(
        torch.allclose(_outputs(network, x), outputs, equal_nan=True),
        "the network must return equal outputs for equal examples in evaluation mode; "
        "keep state only in buffers, and draw no random numbers",
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
            "; pack several inputs into one tensor, and split the tensor in forward or in a Model's 'inputs'"
            if several
            else ""
        )
        raise InputError(
            f"the model cannot process a batch of {len(x)} examples of shape {tuple(x.shape[1:])}: "
            f"{_first_line(error)}{advice}"
        ) from error
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise InputError(
            f"the network must return one tensor (examples, classes) (got {kind}); extract the output tensor, "
            "for instance with Model(MyNetwork, outputs=lambda result: result.logits)"
        )
    return outputs


def _require_shape(outputs: Tensor, y: Tensor, classes: int | None) -> None:
    least = y.shape[1] if classes is None else classes
    one_for_each = outputs.dim() > 0 and len(outputs) == len(y)
    # In a regression labels may hold more than the targets, such as a mask; one output alone would be broadcast.
    wide = outputs.dim() == 2 and outputs.shape[1] >= least
    wide = wide or (classes is None and outputs.dim() > 1 and outputs[0].numel() > 1)
    require(
        one_for_each and wide,
        f"the model must have at least {least} outputs per example (got outputs of shape {tuple(outputs.shape[1:])})",
    )


def _require_per_example(name: str, function: Loss | ModelMetric, outputs: Tensor, y: Tensor, advice: str = "") -> None:
    try:
        values = function(outputs, y)
    except Exception as error:
        raise InputError(
            f"a Model's {name} cannot be computed from the network's outputs: {_first_line(error)}"
        ) from error
    shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
    require(
        shape == (len(y),),
        f"a Model's {name} must return one value per example, shape ({len(y)},) for {len(y)} examples (got "
        f"{shape}){advice}",
    )


def _require_trains(model: Model, x: Tensor, y: Tensor) -> None:
    """Raise `InputError` unless a training step depends only on examples, parameters and seeds."""
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
        raise InputError(
            f"the model cannot be trained on a batch of {len(x)} examples: {_first_line(error)}"
        ) from error
    require(not changing, _changes_inputs("".join(changing[:1])))
    for name, drawing in watched.items():
        require(
            not drawing,
            f"{''.join(drawing[:1])} draws from {name}, which threads share; "
            "use torch.nn.Dropout, which Shoal seeds, or set the layer's dropout to 0 (in transformers, "
            "attention_probs_dropout_prob=0)",
        )
    require(
        outputs.requires_grad,
        "no gradient reaches the network's parameters; remove torch.no_grad or detach from the network",
    )
    for name, now in network.named_buffers():
        if name not in before:
            continue
        was, copy = before[name]
        require(
            now is was,
            f"the network replaces its buffer '{name}' by a new tensor in training; "
            f"write into the buffer, for instance with self.{name}.copy_(...)",
        )
        if name in model.frozen and not torch.equal(now, copy):
            now.copy_(copy)
            raise InputError(changes_frozen(name))
        owner = network.get_submodule(name.rpartition(".")[0])
        # Batch norm's count of batches matters without a momentum alone.
        kept = now.is_floating_point() or isinstance(owner, nn.modules.batchnorm._NormBase)
        require(
            kept or torch.equal(now, copy),
            f"a buffer that changes in training must be float32 (got '{name}' of "
            f"{str(now.dtype).removeprefix('torch.')})",
        )
    model.require_frozen()


def _changes_inputs(who: str) -> str:
    return f"{who} changes the network's inputs in place; remove inplace=True, or copy the inputs first (x = x.clone())"


def _watch(network: nn.Module, state: Callable[[], object]) -> list[str]:
    """Return a list to which running ``network`` adds the layers that change ``state()``, innermost first."""
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
