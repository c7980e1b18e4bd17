"""A model: a network factory and a per-example loss."""

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from shoal.core.errors import InputError, described, quoted, require
from shoal.core.layout import Layout
from shoal.core.randomness import Stream, seeded
from shoal.core.representation import one_line
from shoal.models.layers import SeededDropout, require_trainable

LOG = logging.getLogger(__name__)

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function of outputs (B, C) and labels (B,), of a regression (B, d), that returns the loss of each example (B,)."""

Metric = Callable[[Tensor, Tensor], Tensor]
"""A function of outputs and labels that returns a number per example (B,), higher where the model is better."""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy in nats of each example: outputs (B, C), labels (B,) -> (B,)."""
    # The numbers of `functional.cross_entropy`, bit for bit, which under vmap is a Python function that loads sympy:
    # 0.4 s of processor time.
    return -functional.log_softmax(outputs, dim=1).gather(1, labels[:, None]).squeeze(1)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """The loss of a regression: outputs (B, d), labels (B, d) -> (B,), the mean over d of the squared differences.

    Labels of another number of targets are an error, never broadcast.

    Example:
        >>> from shoal import squared_error
        >>> import torch
        >>> squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))
        tensor([2.])
    """
    return (outputs - labels.reshape(outputs.shape)).square().mean(dim=-1)


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """A classification's metric: 1 where the largest output is the label's; outputs (B, C), labels (B,) -> (B,)."""
    return (outputs.argmax(dim=1) == labels).float()


@dataclass(frozen=True)
class NegativeLoss:
    """The metric of a regression without one of its own: minus the loss of each example."""

    loss: Loss

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Outputs (B, C), labels (B, d) -> (B,)."""
        return -self.loss(outputs, labels)


@dataclass(frozen=True)
class Model:
    """A network that can be built as often as needed, and whose parameters are one flat vector (P,).

    Args:
        build: a class or function without arguments that returns a new, randomly initialised `torch.nn.Module` from
            inputs, such as images (B, C, H, W), to outputs (B, classes); of a regression (B, d).
        loss: per-example loss; of a regression such as `squared_error`.
        metric: reported as accuracy, a number per example, higher where the model is better. None: `accuracy` where
            labels are classes, minus the loss in a regression.
        outputs: a function that takes the tensor of outputs out of the network's result, such as
            ``lambda result: result.logits`` or ``operator.itemgetter("logits")``. None: the result is that tensor.
        inputs: a function of a batch of inputs (B, ...) that gives what the network takes: its keyword arguments as a
            dict, its positional ones as a tuple, or a tensor. A text's padding becomes a mask by ``lambda words:
            {"input_ids": words, "attention_mask": words != 0}``; several inputs of an example that are stored in one
            tensor are taken apart. None: the batch itself.

    Example:
        >>> from torch import nn
        >>> from shoal import Model, Stream
        >>> model = Model(lambda: nn.Linear(2, 3))
        >>> model.parameters, model.init(Stream(0)).shape
        (9, torch.Size([9]))
    """

    build: Callable[[], nn.Module]
    loss: Loss = cross_entropy
    metric: Metric | None = None
    outputs: Callable[[Any], Tensor] | None = None
    inputs: Callable[[Tensor], Any] | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        takes = "a Model takes the class or a function that builds the network"
        network = isinstance(self.build, nn.Module)
        require(not network, f"{takes}, not a network: each of the K models needs its own random start")
        require(callable(self.build), f"{takes}; got {self.build!r}")
        missing = _arguments_without_default(self.build)
        require(
            not missing,
            f"a Model's build is called without arguments, but it needs {quoted(missing)}; give them by a lambda or "
            "functools.partial",
        )
        for name, function in (("loss", self.loss), ("metric", self.metric)):
            usable = callable(function) or (name == "metric" and function is None)
            require(usable, f"a Model's {name} must be a function of outputs and labels; got {described(function)}")
        require(
            self.outputs is None or callable(self.outputs),
            "a Model's outputs must be a function of the network's result, such as lambda result: result.logits; got "
            f"{described(self.outputs)}",
        )
        require(
            self.inputs is None or callable(self.inputs),
            "a Model's inputs must be a function of a batch, such as lambda words: {'input_ids': words}; got "
            f"{described(self.inputs)}",
        )

    def metric_for(self, classes: int | None) -> Metric:
        """The metric on labels of so many classes; None: of a regression."""
        if self.metric is not None:
            return self.metric
        return NegativeLoss(self.loss) if classes is None else accuracy

    def network(self) -> nn.Module:
        """A new network, always with the same parameters: it is for its structure."""
        return self._network(Stream(0, ("structure",)))

    def _network(self, stream: Stream) -> nn.Module:
        with seeded(stream):
            network = self.build()
        if not isinstance(network, nn.Module):
            raise InputError(f"a Model's build must return a torch.nn.Module; got {type(network).__name__}")
        if self.outputs is not None:
            # A hook, and not a network around it, so that tensors keep their names.
            network.register_forward_hook(partial(_extract, self.outputs))
        if self.inputs is not None:
            network.register_forward_pre_hook(partial(_arranged, self.inputs), with_kwargs=True)
        network = _with_seeded_dropout(network)
        self._require_unchanged(network)
        return network

    def _require_unchanged(self, network: nn.Module) -> None:
        """Raise `InputError` where ``build`` makes another network than when the model was first used."""
        layout: Layout | None = vars(self).get("layout")
        if layout is None:
            return
        tensors = (*network.named_parameters(), *network.named_buffers())
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors}
        for slot in layout.slots:
            require(
                shapes.get(slot.name) == slot.shape,
                f"the network has changed since its model was first used: '{slot.name}' had the shape {slot.shape}, "
                f"and now has {shapes.get(slot.name, 'none')}; make a new Model for another network",
            )

    @cached_property
    def layout(self) -> Layout:
        """The order of the network's tensors in its flat vector.

        Raises:
            InputError: the network cannot be trained (`require_trainable`), or it is built only once.
        """
        network = self.network()
        others = {id(p) for p in self.network().parameters()}
        require(
            not any(id(p) in others for p in network.parameters()),
            "a Model's build must make a new network each time, but it returned the same one twice; build it inside",
        )
        require_trainable(network)
        parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
        frozen = {name: p for name, p in network.named_parameters() if not p.requires_grad}
        buffers = {name: b for name, b in network.named_buffers() if b.is_floating_point()}
        return Layout.from_tensors(parameters, frozen | buffers)

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return self.layout.trainable

    def init(self, stream: Stream) -> Tensor:
        """Random initial parameters (P,), by the network's own initialisation with the randomness of ``stream``."""
        network = self._network(stream)
        return self.layout.pack(dict(network.named_parameters()) | dict(network.named_buffers()))

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        """All tensors that `load_state_dict` of the network takes, by name, as contiguous copies.

        They are those of ``vector`` (P,), and the others as in a new network: tensors that share another one's, and
        buffers of integers, such as batch norm's count of batches.
        """
        views, network = self.layout.views(vector), self.network()
        network.load_state_dict(views, strict=False)
        whole: dict[str, Tensor] = dict(network.state_dict())
        whole |= {name: view for name, view in views.items() if name in whole}
        return {name: tensor.detach().clone().contiguous() for name, tensor in whole.items()}


def metric_name(metric: Metric) -> str:
    """The name of a metric in tables: its function's name in words."""
    if isinstance(metric, NegativeLoss):
        name = metric_name(metric.loss)
        return "minus the loss" if name == "metric" else f"minus {name}"
    name = getattr(metric, "__name__", type(metric).__name__)
    return "metric" if name in ("<lambda>", "partial") else name.replace("_", " ").strip()


def _extract(outputs: Callable[[Any], Tensor], network: nn.Module, inputs: tuple[Any, ...], result: object) -> Tensor:
    del network, inputs
    try:
        return outputs(result)
    except (AttributeError, LookupError, TypeError) as error:
        raise InputError(
            f"the model's outputs cannot be taken out of the {type(result).__name__} that its network gives: {error}"
        ) from error


def _arranged(
    inputs: Callable[[Tensor], Any], network: nn.Module, given: tuple[Tensor], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    del network
    taken = inputs(*given, **named)
    if isinstance(taken, Mapping):
        return (), dict(taken)
    return (taken if isinstance(taken, tuple) else (taken,)), {}


def _arguments_without_default(build: Callable[[], nn.Module]) -> list[str]:
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _with_seeded_dropout(network: nn.Module) -> nn.Module:
    """The network with `SeededDropout` in the places of `nn.Dropout`, whose masks would depend on the threads."""
    for name, module in list(network.named_modules()):
        if type(module) is nn.Dropout and name:
            owner, _, leaf = name.rpartition(".")
            setattr(network.get_submodule(owner), leaf, SeededDropout(module.p))
            LOG.debug("layer '%s': nn.Dropout(%g) is replaced by SeededDropout", name, module.p)
    return network
