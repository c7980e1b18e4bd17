"""A model: a network factory, a per-example loss and a metric."""

import hashlib
import inspect
import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal.core.errors import InputError, describe, quote, require
from shoal.core.formats import one_line
from shoal.core.layout import Layout
from shoal.core.randomness import Stream, seed_libraries
from shoal.models.layers import SeededDropout, changing_buffers, require_trainable, take_images

LOG = logging.getLogger(__name__)

_STRUCTURE = Stream(0, ("structure",))

Loss = Callable[[Tensor, Tensor], Tensor]
"""A function of outputs (B, C) and labels (B,), or targets (B, d), that returns the loss of each example (B,)."""

ModelMetric = Callable[[Tensor, Tensor], Tensor]
"""A function of outputs and labels that returns a number per example (B,), higher for a better model."""


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each example in nats, (B,), from outputs (B, C) and labels (B,)."""
    # Equal to `functional.cross_entropy` bit for bit, which under vmap loads sympy (0.4 s of processor time).
    return -functional.log_softmax(outputs, dim=1).gather(1, labels[:, None]).squeeze(1)


def squared_error(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean squared error of each example, (B,), from outputs (B, d) and regression targets (B, d).

    Outputs and targets of different widths are an error.

    Example:
        >>> from shoal import squared_error
        >>> import torch
        >>> squared_error(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 4.0]]))
        tensor([2.])
    """
    return (outputs - labels.reshape(outputs.shape)).square().mean(dim=-1)


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for correct and 0 for wrong predictions, (B,), from outputs (B, C) and labels (B,)."""
    return (outputs.argmax(dim=1) == labels).float()


@dataclass(frozen=True)
class NegativeLoss:
    """The default metric of a regression: minus the loss of each example."""

    loss: Loss

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return minus the loss (B,) of outputs (B, ...) and targets (B, d)."""
        return -self.loss(outputs, labels)


@dataclass(frozen=True)
class Model:
    """A network factory; each network's trained parameters form one flat vector (P,).

    Networks of one model share frozen parameters (``requires_grad_(False)``) and float buffers that training does not
    change; flat vectors exclude these tensors. Buffers that training changes are averaged like parameters: the
    statistics of batch norm and instance norm, the vectors of spectral norm, and the buffers that a module names in an
    attribute such as ``changing_buffers = ("mean",)``.

    Args:
        build: a class or function without arguments that returns a new, randomly initialised `torch.nn.Module`. The
            network maps inputs, such as images (B, C, H, W), to outputs (B, classes), or (B, d) in a regression.
            `torch.compile` is undone.
        loss: the per-example loss, such as `squared_error` for a regression.
        metric: the per-example number reported as accuracy, higher for a better model; the default is `accuracy`,
            or minus the loss in a regression.
        outputs: a function that extracts the output tensor from the network's result, such as ``lambda result:
            result.logits``, or None if the result is the output tensor.
        inputs: a function that converts a batch of inputs (B, ...) to the network's arguments: a dict of keyword
            arguments, a tuple of positional arguments, or one tensor. For texts, ``lambda words: {"input_ids": words,
            "attention_mask": words != 0}`` masks the padding. By default, the network's argument is the batch.

    Example:
        >>> from torch import nn
        >>> from shoal import Model, Stream
        >>> model = Model(lambda: nn.Linear(2, 3))
        >>> model.parameters, model.init(Stream(0)).shape
        (9, torch.Size([9]))
        >>> body = nn.Linear(2, 100).requires_grad_(False)
        >>> model = Model(lambda: nn.Sequential(body, nn.ReLU(), nn.Linear(100, 3)))
        >>> model.parameters, list(model.frozen)
        (303, ['0.weight', '0.bias'])
    """

    build: Callable[[], nn.Module]
    loss: Loss = cross_entropy
    metric: ModelMetric | None = None
    outputs: Callable[[Any], Tensor] | None = None
    inputs: Callable[[Tensor], Any] | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        network = isinstance(self.build, nn.Module)
        require(not network, "a Model's build must be a class or function (got a network); pass the class or a lambda")
        require(callable(self.build), f"a Model's build must be a class or function (got {self.build!r})")
        missing = _arguments_without_default(self.build)
        require(
            not missing,
            f"a Model's build must have no required arguments (got {quote(missing)}); use a lambda or "
            "functools.partial",
        )
        for name, function in (("loss", self.loss), ("metric", self.metric)):
            usable = callable(function) or (name == "metric" and function is None)
            require(usable, f"a Model's {name} must be a function of outputs and labels (got {describe(function)})")
        require(
            self.outputs is None or callable(self.outputs),
            "a Model's outputs must be a function of the network's result, such as lambda result: result.logits (got "
            f"{describe(self.outputs)})",
        )
        require(
            self.inputs is None or callable(self.inputs),
            "a Model's inputs must be a function of a batch, such as lambda words: {'input_ids': words} (got "
            f"{describe(self.inputs)})",
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return only the fields for pickling; the receiving process rebuilds the tensors."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def metric_for(self, classes: int | None) -> ModelMetric:
        """Return the metric for a number of classes, or for a regression if ``classes`` is None."""
        if self.metric is not None:
            return self.metric
        return NegativeLoss(self.loss) if classes is None else accuracy

    def network(self) -> nn.Module:
        """Return a new network; all new networks of a model have equal initial parameters."""
        return self._prepare(self._build(_STRUCTURE), {})

    def structure(self, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> nn.Module:
        """Return a new network that shares the frozen tensors of `frozen_on`."""
        _, frozen, structure = self._parts
        if structure is None:
            return self.network().to(device)
        # New tensors on the same memory, so that ``network.to`` changes no other network.
        shared = {
            id(frozen[name]): nn.Parameter(tensor, requires_grad=False)
            if isinstance(frozen[name], nn.Parameter)
            else tensor.detach()
            for name, tensor in self.frozen_on(device, dtype).items()
        }
        return _copy_network(structure, shared).to(device)

    def _build(self, stream: Stream) -> nn.Module:
        with seed_libraries(stream):
            network = self.build()
        if not isinstance(network, nn.Module):
            raise InputError(f"a Model's build must return a torch.nn.Module (got {type(network).__name__})")
        network = _eager_module(network)
        self._require_unchanged(network)
        return network

    def _prepare(self, network: nn.Module, shared: Mapping[int, Tensor]) -> nn.Module:
        """Prepare a network for the engine; copy a network with frozen parameters, except ``shared``."""
        if any(not parameter.requires_grad for parameter in network.parameters()):
            network = _copy_network(network, shared)
        if self.outputs is not None:
            # A hook, and not a network around it, so that tensors keep their names.
            network.register_forward_hook(partial(_extract, self.outputs))
        if self.inputs is not None:
            network.register_forward_pre_hook(partial(_bind_arguments, self.inputs), with_kwargs=True)
        return take_images(_with_seeded_dropout(network))

    def _require_unchanged(self, network: nn.Module) -> None:
        """Raise `InputError` if ``build`` returns a different structure than at the model's first use."""
        if "_parts" not in vars(self):
            return
        tensors = (*network.named_parameters(), *network.named_buffers())
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors}
        needed = {slot.name: slot.shape for slot in self.layout.slots}
        for name, shape in (needed | {name: tuple(tensor.shape) for name, tensor in self.frozen.items()}).items():
            require(
                shapes.get(name) == shape,
                f"a Model's build must return equal network structures: '{name}' must have the shape {shape}, as in "
                f"the first network (got {shapes.get(name, 'none')}); create a new Model for a different network",
            )

    @cached_property
    def _parts(self) -> tuple[Layout, dict[str, Tensor], nn.Module | None]:
        """The layout, the frozen tensors, and a network with these tensors (None without any)."""
        first, second = self._build(_STRUCTURE), self._build(_STRUCTURE)
        second_ids = {id(p) for p in second.parameters() if p.requires_grad}
        require(
            not any(id(p) in second_ids for p in first.parameters()),
            "a Model's build must return a new network in each call (got the same network twice)",
        )
        network = self._prepare(first, {id(p): p for p in first.parameters() if not p.requires_grad})
        require_trainable(network)
        changing = changing_buffers(network)
        trained, frozen, buffers = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
        for name, parameter in network.named_parameters():
            (trained if parameter.requires_grad else frozen)[name] = parameter
            if not parameter.requires_grad and parameter.dim() == 4:
                # As `Slot` stores them, for the CPU's convolutions.
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        for name, buffer in network.named_buffers():
            if buffer.is_floating_point():
                (buffers if name in changing else frozen)[name] = buffer
        return Layout.from_tensors(trained, buffers), frozen, network if frozen else None

    @property
    def layout(self) -> Layout:
        """The order of trained tensors, and of buffers that training changes, in the flat vector.

        Raises:
            InputError: the network cannot be trained (`require_trainable`), or ``build`` returns the same network
                twice.
        """
        return self._parts[0]

    @property
    def frozen(self) -> Mapping[str, Tensor]:
        """The frozen parameters and fixed float buffers by name, shared by all networks."""
        return self.frozen_on(None, torch.float32)

    def frozen_on(self, device: torch.device | None, dtype: torch.dtype) -> dict[str, Tensor]:
        """Return the frozen tensors on a device (None for the CPU) in ``dtype``, shared by all callers."""
        key = (device or torch.device("cpu"), dtype)
        if key not in self._copies:
            tensors = {name: tensor.detach().to(*key) for name, tensor in self._parts[1].items()}
            # Another thread may have set them meanwhile.
            self._copies.setdefault(key, ({name: tensor._version for name, tensor in tensors.items()}, tensors))
        return self._copies[key][1]

    @cached_property
    def _copies(self) -> dict[tuple[torch.device, torch.dtype], tuple[dict[str, int], dict[str, Tensor]]]:
        """The initial version numbers and the frozen tensors, by device and type."""
        return {}

    def require_frozen(self) -> None:
        """Raise `InputError` if a frozen tensor was changed."""
        for versions, tensors in self._copies.values():
            for name, tensor in tensors.items():
                require(tensor._version == versions[name], changes_frozen(name))

    @cached_property
    def frozen_hash(self) -> str:
        """The SHA-256 hash of the frozen tensors' names, shapes and values, or "" without frozen tensors."""
        return hash_of(self.frozen)

    def with_frozen(self, tensors: Mapping[str, Tensor]) -> "Model":
        """Return a copy of the model with the frozen tensors ``tensors``.

        Raises:
            InputError: the names or shapes differ from the frozen tensors'.
        """
        old, new = ({name: tuple(part.shape) for name, part in named.items()} for named in (self.frozen, tensors))
        require(old == new, "the frozen tensors must have the names and shapes of the network's frozen tensors")
        return replace(self, build=partial(_with_tensors, self.build, tensors))

    def require_same_frozen(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Raise `InputError` if frozen tensors in ``tensors`` differ from the model's by more than rounding."""
        for name, tensor in self.frozen.items():
            close = name not in tensors or torch.allclose(tensors[name].to(tensor), tensor, rtol=1e-5, atol=1e-6)
            require(
                close,
                f"{where}: the frozen tensor '{name}' differs from the model's; use the same frozen tensors",
            )

    @property
    def parameters(self) -> int:
        """The number of trainable parameters."""
        return self.layout.trainable

    def init(self, stream: Stream) -> Tensor:
        """Draw initial parameters (P,) with the network's own initialisation."""
        network = self._build(stream)
        return self.layout.pack(dict(network.named_parameters()) | dict(network.named_buffers()))

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        """Return a contiguous state dict of the whole network for the parameters ``vector`` (P,).

        Trained tensors are copies. Frozen tensors are shared. All other tensors, such as batch norm's count of
        batches, come from a new network.
        """
        views, network = self.layout.views(vector), self.structure()
        network.load_state_dict(views, strict=False)
        whole: dict[str, Tensor] = dict(network.state_dict())
        whole |= {name: view for name, view in views.items() if name in whole}
        shared = self._shared_names
        return {
            name: self.frozen[shared[name]] if name in shared else tensor.detach().clone().contiguous()
            for name, tensor in whole.items()
        }

    @property
    def frozen_names(self) -> tuple[str, ...]:
        """The names of frozen tensors in `state_dict`; a tensor in several layers has several names."""
        return tuple(self._shared_names)

    @cached_property
    def _shared_names(self) -> dict[str, str]:
        """The names of frozen tensors in `state_dict`, with their names in `frozen`."""
        names = {id(tensor): name for name, tensor in self._parts[1].items()}
        structure = self._parts[2]
        whole = {} if structure is None else structure.state_dict(keep_vars=True)
        return {name: names[id(tensor)] for name, tensor in whole.items() if id(tensor) in names}


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """Return the SHA-256 hash of float32 tensors' names, shapes and values, or "" without tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest() if tensors else ""


def metric_name(metric: ModelMetric) -> str:
    """Return a metric's name for tables: the function's name, with spaces for underscores."""
    if isinstance(metric, NegativeLoss):
        name = metric_name(metric.loss)
        return "minus the loss" if name == "metric" else f"minus {name}"
    name = getattr(metric, "__name__", type(metric).__name__)
    return "metric" if name in ("<lambda>", "partial") else name.replace("_", " ").strip()


def changes_frozen(name: str) -> str:
    """Return the error message about a changed frozen tensor."""
    return (
        f"the network's frozen tensor '{name}' was changed; if training may change this buffer, set "
        f"changing_buffers = ('{name.rpartition('.')[2]}',) in its module"
    )


def _copy_network(network: nn.Module, shared: Mapping[int, Tensor]) -> nn.Module:
    """Copy a network, but use ``shared`` for tensors whose ids are keys of ``shared``."""
    try:
        return deepcopy(network, dict(shared))
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"a network with frozen tensors must support copy.deepcopy ({reason})") from error


def _eager_module(network: nn.Module) -> nn.Module:
    """Undo `torch.compile`, whose modules put ``_orig_mod.`` into the names of tensors."""
    while "_orig_mod" in network._modules:
        network = network.get_submodule("_orig_mod")
    for leaf, child in list(network.named_children()):
        plain = _eager_module(child)
        if plain is not child:
            setattr(network, leaf, plain)
    return network


def _with_tensors(build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Build a network, and replace its tensors named in ``tensors``."""
    network = _eager_module(build())
    named: dict[str, Tensor] = dict(network.named_parameters()) | dict(network.named_buffers())
    return _copy_network(
        network,
        {
            id(named[name]): nn.Parameter(tensor, requires_grad=False)
            if isinstance(named[name], nn.Parameter)
            else tensor
            for name, tensor in tensors.items()
        },
    )


def _extract(outputs: Callable[[Any], Tensor], network: nn.Module, inputs: tuple[Any, ...], result: object) -> Tensor:
    del network, inputs
    try:
        return outputs(result)
    except (AttributeError, LookupError, TypeError) as error:
        raise InputError(
            f"a Model's outputs cannot extract a tensor from the network's result, a {type(result).__name__} ({error})"
        ) from error


def _bind_arguments(
    inputs: Callable[[Tensor], Any], network: nn.Module, positional: tuple[Tensor], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    del network
    arguments = inputs(*positional, **keywords)
    if isinstance(arguments, Mapping):
        return (), dict(arguments)
    return (arguments if isinstance(arguments, tuple) else (arguments,)), {}


def _arguments_without_default(build: Callable[[], nn.Module]) -> list[str]:
    try:
        parameters = inspect.signature(build).parameters.values()
    except (TypeError, ValueError):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]


def _with_seeded_dropout(network: nn.Module) -> nn.Module:
    """Replace `nn.Dropout`, whose masks would depend on the threads, by `SeededDropout`."""
    for name, module in list(network.named_modules()):
        if type(module) is nn.Dropout and name:
            owner, _, leaf = name.rpartition(".")
            setattr(network.get_submodule(owner), leaf, SeededDropout(module.p))
            LOG.debug("layer '%s': nn.Dropout(%g) is replaced by SeededDropout", name, module.p)
    return network
