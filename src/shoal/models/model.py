"""A model: a network factory and a per-example loss."""

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
"""A function of outputs (B, C) and labels (B,), of a regression (B, d), that returns the loss of each example (B,)."""

ModelMetric = Callable[[Tensor, Tensor], Tensor]
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
    """A network that can be built as often as needed, and whose trained parameters are one flat vector (P,).

    Frozen parameters (``requires_grad_(False)``) and float buffers that training leaves as they are exist once: they
    are those of the first network that is built, shared by all networks of this model, and are in no vector. So all K
    models have the same frozen body, also where it is random. ``build`` may make a frozen body once and use it in each
    network. Buffers that training changes are averaged like parameters: the statistics of batch norm and instance norm,
    the vectors of spectral norm, and those that a module names in an attribute, ``changing_buffers = ("mean",)``.

    Args:
        build: a class or function without arguments that returns a new, randomly initialised `torch.nn.Module` from
            inputs, such as images (B, C, H, W), to outputs (B, classes); of a regression (B, d). `torch.compile` is
            undone: the network trains, and is saved, as it was before.
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
        takes = "a Model takes the class or a function that builds the network"
        network = isinstance(self.build, nn.Module)
        require(not network, f"{takes}, not a network: each of the K models needs its own random start")
        require(callable(self.build), f"{takes}; got {self.build!r}")
        missing = _arguments_without_default(self.build)
        require(
            not missing,
            f"a Model's build is called without arguments, but it needs {quote(missing)}; give them by a lambda or "
            "functools.partial",
        )
        for name, function in (("loss", self.loss), ("metric", self.metric)):
            usable = callable(function) or (name == "metric" and function is None)
            require(usable, f"a Model's {name} must be a function of outputs and labels; got {describe(function)}")
        require(
            self.outputs is None or callable(self.outputs),
            "a Model's outputs must be a function of the network's result, such as lambda result: result.logits; got "
            f"{describe(self.outputs)}",
        )
        require(
            self.inputs is None or callable(self.inputs),
            "a Model's inputs must be a function of a batch, such as lambda words: {'input_ids': words}; got "
            f"{describe(self.inputs)}",
        )

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: tensors are built again elsewhere."""
        return {own.name: getattr(self, own.name) for own in fields(self)}

    def metric_for(self, classes: int | None) -> ModelMetric:
        """The metric on labels of so many classes; None: of a regression."""
        if self.metric is not None:
            return self.metric
        return NegativeLoss(self.loss) if classes is None else accuracy

    def network(self) -> nn.Module:
        """A new network, always with the same parameters, all of them its own."""
        return self._prepared(self._built(_STRUCTURE), {})

    def structure(self, device: torch.device | None = None, dtype: torch.dtype = torch.float32) -> nn.Module:
        """A new network for its structure, as `network`, whose frozen tensors are `frozen_on` this device."""
        _, frozen, structure = self._parts
        if structure is None:
            return self.network().to(device)
        # Tensors of its own on the same memory, so that ``network.to`` changes no other network.
        shared = {
            id(frozen[name]): nn.Parameter(tensor, requires_grad=False)
            if isinstance(frozen[name], nn.Parameter)
            else tensor.detach()
            for name, tensor in self.frozen_on(device, dtype).items()
        }
        return _copied(structure, shared).to(device)

    def _built(self, stream: Stream) -> nn.Module:
        """What ``build`` makes."""
        with seed_libraries(stream):
            network = self.build()
        if not isinstance(network, nn.Module):
            raise InputError(f"a Model's build must return a torch.nn.Module; got {type(network).__name__}")
        network = _uncompiled(network)
        self._require_unchanged(network)
        return network

    def _prepared(self, network: nn.Module, shared: Mapping[int, Tensor]) -> nn.Module:
        """The network as the engine uses it; one with frozen parameters may have modules in common with others, so it
        is copied, but for the tensors in ``shared``.
        """
        if any(not parameter.requires_grad for parameter in network.parameters()):
            network = _copied(network, shared)
        if self.outputs is not None:
            # A hook, and not a network around it, so that tensors keep their names.
            network.register_forward_hook(partial(_extract, self.outputs))
        if self.inputs is not None:
            network.register_forward_pre_hook(partial(_arranged, self.inputs), with_kwargs=True)
        return take_images(_with_seeded_dropout(network))

    def _require_unchanged(self, network: nn.Module) -> None:
        """Raise `InputError` where ``build`` makes another network than when the model was first used."""
        if "_parts" not in vars(self):
            return
        tensors = (*network.named_parameters(), *network.named_buffers())
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors}
        needed = {slot.name: slot.shape for slot in self.layout.slots}
        for name, shape in (needed | {name: tuple(tensor.shape) for name, tensor in self.frozen.items()}).items():
            require(
                shapes.get(name) == shape,
                f"the network has changed since its model was first used: '{name}' had the shape {shape}, "
                f"and now has {shapes.get(name, 'none')}; make a new Model for another network",
            )

    @cached_property
    def _parts(self) -> tuple[Layout, dict[str, Tensor], nn.Module | None]:
        """The layout; the frozen tensors, and a network that has them, if there are any."""
        built, other = self._built(_STRUCTURE), self._built(_STRUCTURE)
        others = {id(p) for p in other.parameters() if p.requires_grad}
        require(
            not any(id(p) in others for p in built.parameters()),
            "a Model's build must make a new network each time, but it returned the same one twice; build it inside",
        )
        network = self._prepared(built, {id(p): p for p in built.parameters() if not p.requires_grad})
        require_trainable(network)
        changing = changing_buffers(network)
        trained, frozen, kept = dict[str, Tensor](), dict[str, Tensor](), dict[str, Tensor]()
        for name, parameter in network.named_parameters():
            (trained if parameter.requires_grad else frozen)[name] = parameter
            if not parameter.requires_grad and parameter.dim() == 4:
                # As `Slot` stores them, for the CPU's convolutions.
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        for name, buffer in network.named_buffers():
            if buffer.is_floating_point():
                (kept if name in changing else frozen)[name] = buffer
        return Layout.from_tensors(trained, kept), frozen, network if frozen else None

    @property
    def layout(self) -> Layout:
        """The order of the network's trained tensors, and of the buffers that training changes, in its flat vector.

        Raises:
            InputError: the network cannot be trained (`require_trainable`), or it is built only once.
        """
        return self._parts[0]

    @property
    def frozen(self) -> Mapping[str, Tensor]:
        """The frozen parameters and fixed float buffers by name, which all networks share and nothing may change."""
        return self.frozen_on(None, torch.float32)

    def frozen_on(self, device: torch.device | None, dtype: torch.dtype) -> dict[str, Tensor]:
        """The frozen tensors on a device (None: the CPU) in ``dtype``; one copy, however often they are asked for."""
        key = (device or torch.device("cpu"), dtype)
        if key not in self._copies:
            made = {name: tensor.detach().to(*key) for name, tensor in self._parts[1].items()}
            # Another thread may have made them meanwhile.
            self._copies.setdefault(key, ({name: tensor._version for name, tensor in made.items()}, made))
        return self._copies[key][1]

    @cached_property
    def _copies(self) -> dict[tuple[torch.device, torch.dtype], tuple[dict[str, int], dict[str, Tensor]]]:
        """The frozen tensors by device and type, with the counts of writes that they had in the beginning."""
        return {}

    def require_frozen(self) -> None:
        """Raise `InputError` where somebody wrote to a frozen tensor."""
        for versions, tensors in self._copies.values():
            for name, tensor in tensors.items():
                require(tensor._version == versions[name], changes_frozen(name))

    @cached_property
    def frozen_hash(self) -> str:
        """SHA-256 of the frozen tensors, their names and shapes; "" where there are none."""
        return hash_of(self.frozen)

    def with_frozen(self, tensors: Mapping[str, Tensor]) -> "Model":
        """The model with these numbers in its frozen tensors.

        Raises:
            InputError: they have other names or shapes.
        """
        mine, given = ({name: tuple(one.shape) for name, one in named.items()} for named in (self.frozen, tensors))
        require(mine == given, "the frozen tensors are of another network: their names or shapes are not this one's")
        return replace(self, build=partial(_with_tensors, self.build, tensors))

    def require_same_frozen(self, tensors: Mapping[str, Tensor], where: str) -> None:
        """Raise `InputError` where ``tensors`` have other numbers under the names of frozen ones.

        The last bits may differ, which rounding changes where frozen tensors were averaged.
        """
        for name, tensor in self.frozen.items():
            close = name not in tensors or torch.allclose(tensors[name].to(tensor), tensor, rtol=1e-5, atol=1e-6)
            require(close, f"{where}: the frozen tensor '{name}' is not that of the model; build the same frozen body")

    @property
    def parameters(self) -> int:
        """Number of trainable parameters."""
        return self.layout.trainable

    def init(self, stream: Stream) -> Tensor:
        """Random initial parameters (P,), by the network's own initialisation with the randomness of ``stream``."""
        network = self._built(stream)
        return self.layout.pack(dict(network.named_parameters()) | dict(network.named_buffers()))

    def state_dict(self, vector: Tensor) -> dict[str, Tensor]:
        """All tensors that `load_state_dict` of the whole network takes, by name, contiguous.

        They are copies of those of ``vector`` (P,); the frozen ones themselves, which nothing may change; and the
        others as in a new network: tensors that share another one's, and buffers of integers, such as batch norm's
        count of batches.
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
        """The names of `state_dict` that are of frozen tensors; one that layers share has several."""
        return tuple(self._shared_names)

    @cached_property
    def _shared_names(self) -> dict[str, str]:
        """The names of `state_dict` that are of frozen tensors, and those that `frozen` has for them."""
        names = {id(tensor): name for name, tensor in self._parts[1].items()}
        structure = self._parts[2]
        whole = {} if structure is None else structure.state_dict(keep_vars=True)
        return {name: names[id(tensor)] for name, tensor in whole.items() if id(tensor) in names}


def hash_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of float32 tensors, their names and shapes; "" without any."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} ".encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest() if tensors else ""


def metric_name(metric: ModelMetric) -> str:
    """The name of a metric in tables: its function's name in words."""
    if isinstance(metric, NegativeLoss):
        name = metric_name(metric.loss)
        return "minus the loss" if name == "metric" else f"minus {name}"
    name = getattr(metric, "__name__", type(metric).__name__)
    return "metric" if name in ("<lambda>", "partial") else name.replace("_", " ").strip()


def changes_frozen(name: str) -> str:
    """The sentence about a frozen tensor that was written to."""
    return (
        f"the network's frozen tensor '{name}', which all models share, was changed; a module names the buffers that "
        f"training changes in an attribute, changing_buffers = ('{name.rpartition('.')[2]}',)"
    )


def _copied(network: nn.Module, shared: Mapping[int, Tensor]) -> nn.Module:
    """Copy a network, with other tensors for those whose ids are in ``shared``."""
    try:
        return deepcopy(network, dict(shared))
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"a network with frozen tensors is copied, and this one cannot be: {reason}") from error


def _uncompiled(network: nn.Module) -> nn.Module:
    """The network without `torch.compile`, whose modules put ``_orig_mod.`` into the names of tensors."""
    while "_orig_mod" in network._modules:
        network = network.get_submodule("_orig_mod")
    for leaf, child in list(network.named_children()):
        plain = _uncompiled(child)
        if plain is not child:
            setattr(network, leaf, plain)
    return network


def _with_tensors(build: Callable[[], nn.Module], tensors: Mapping[str, Tensor]) -> nn.Module:
    """What ``build`` makes, with other tensors under some names."""
    network = _uncompiled(build())
    named: dict[str, Tensor] = dict(network.named_parameters()) | dict(network.named_buffers())
    return _copied(
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
