"""Adapters: a frozen network with a few trained parameters, by low-rank updates (LoRA), its biases, or its head.

The networks of Hugging Face's `peft` need none of this: they freeze what is not trained, and go into a `Model` as they
come. LoRA's tensors have the names that peft gives them, ``lora_A`` and ``lora_B``.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from shoal.core.errors import InputError, quoted, require
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.models.model import Model

Target = str | type[nn.Module] | tuple[type[nn.Module], ...]
"""What names modules: a pattern of a module's name or of the last parts of one, as ``"query"`` or ``"layer.*.fc1"``;
the name of its class; the class, or several."""


class LoRALayer(nn.Module):
    """A frozen layer with a low-rank update: ``base_layer(x) + (alpha / rank) * lora_B(lora_A(x))``.

    It begins as the frozen layer, for B is 0. Its ``weight`` is the merged one, W + (alpha / rank) B A, for code that
    reads a layer's weight instead of calling it, as PyTorch's attention does; other attributes are the frozen layer's.

    Args:
        base_layer: `torch.nn.Linear`, `torch.nn.Embedding`, or `torch.nn.Conv2d` of one group, with C_in inputs (of an
            embedding: words) and C_out outputs.
        rank: r; A maps C_in to r, with the kernel of a convolution, and B maps r to C_out.
        alpha: the update's scale is alpha / r.
    """

    def __init__(self, base_layer: nn.Module, rank: int, alpha: float) -> None:
        super().__init__()
        self.base_layer, self.scale = base_layer.requires_grad_(False), alpha / rank
        match base_layer:
            case nn.Linear():
                self.lora_A: nn.Module = nn.Linear(base_layer.in_features, rank, bias=False)
                self.lora_B: nn.Module = nn.Linear(rank, base_layer.out_features, bias=False)
            case nn.Embedding():
                self.lora_A = nn.Embedding(base_layer.num_embeddings, rank, base_layer.padding_idx)
                self.lora_B = nn.Linear(rank, base_layer.embedding_dim, bias=False)
            case nn.Conv2d():
                places: dict[str, Any] = {
                    key: getattr(base_layer, key) for key in ("kernel_size", "stride", "padding", "dilation")
                }
                self.lora_A = nn.Conv2d(
                    base_layer.in_channels, rank, **places, padding_mode=base_layer.padding_mode, bias=False
                )
                self.lora_B = nn.Conv2d(rank, base_layer.out_channels, 1, bias=False)
            case _:
                raise InputError(f"LoRA has no form for {type(base_layer).__name__}")
        nn.init.zeros_(self.lora_B.weight)  # pyright: ignore[reportArgumentType]

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of the merged layer."""
        return self.base_layer(x) + self.scale * self.lora_B(self.lora_A(x))

    @property
    def weight(self) -> Tensor:
        """The merged weight."""
        # Not by `get_parameter`: vmap puts plain tensors in the places of parameters.
        parts: list[Any] = [self.base_layer.weight, self.lora_A.weight, self.lora_B.weight]
        base, a, b = parts
        # An embedding's table has a row for each of its inputs.
        product = a @ b.T if isinstance(self.base_layer, nn.Embedding) else b.flatten(1) @ a.flatten(1)
        return base + self.scale * product.view_as(base)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """A part of this layer, or an attribute of the frozen one, such as ``bias`` or ``in_features``."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name in {"base_layer", "weight"}:
                raise
            return getattr(self.base_layer, name)


class LoRAWeight(nn.Module):
    """The parametrization ``W + (alpha / rank) * lora_B @ lora_A`` of a weight (C_out, C_in), of an attention's."""

    def __init__(self, weight: Tensor, rank: int, alpha: float) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.scale = alpha / rank
        self.lora_A = nn.Parameter(nn.Linear(inputs, rank, bias=False).weight.detach().clone())
        self.lora_B = nn.Parameter(torch.zeros(outputs, rank))

    def forward(self, weight: Tensor) -> Tensor:
        """The merged weight."""
        return weight + self.scale * self.lora_B @ self.lora_A


def lora(
    network: nn.Module,
    rank: int = 8,
    alpha: float | None = None,
    targets: Sequence[Target] | None = None,
    train: Sequence[Target] = (),
) -> nn.Module:
    """A copy of a network, frozen but for low-rank updates of some layers, W + (alpha / rank) B A, and for ``train``.

    Copies share the frozen tensors, so a pretrained network is loaded once, outside a `Model`'s ``build``. A copy
    computes what the network did, since B begins at 0 (and A as a layer's weight does). An average over clients
    is of A and of B, not of their products. `merged` gives the weights W + (alpha / rank) B A of the plain network.

    Args:
        network: with its pretrained weights.
        rank: r of A (r, C_in) and B (C_out, r).
        alpha: the update is scaled by alpha / r; None: alpha is r.
        targets: what is adapted: layers of `torch.nn.Linear`, `torch.nn.Embedding`, `torch.nn.Conv2d` and the
            projections of `torch.nn.MultiheadAttention`, each by a pattern of its name, the name of its class, or the
            class, or a module that holds them. None: all linear layers and attention.
        train: modules that are trained as they are, such as the head, named in the same way; they are not adapted.

    Raises:
        InputError: a target or a module to train that is not in the network, or one without layers to adapt.

    Source: Hu et al. 2022, "LoRA: Low-Rank Adaptation of Large Language Models", ICLR, arXiv:2106.09685.

    Example:
        >>> import shoal, torch
        >>> from torch import nn
        >>> def build():
        ...     body = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        ...     return shoal.lora(body, rank=2, targets=["0"], train=["2"])
        ...
        >>> model = shoal.Model(build)
        >>> [name for name, tensor in model.network().named_parameters() if tensor.requires_grad]
        ['0.lora_A.weight', '0.lora_B.weight', '2.weight', '2.bias']
        >>> sorted(shoal.merged(model, model.init(shoal.Stream(0))))
        ['0.bias', '0.weight', '2.bias', '2.weight']
    """
    require(rank >= 1, f"LoRA's 'rank' must be at least 1; got {rank}")
    require(alpha is None or alpha > 0, f"LoRA's 'alpha' must be above 0; got {alpha}")
    alpha = rank if alpha is None else alpha
    require(not isinstance(targets, str), f"LoRA's targets are a list; got {targets!r}")
    trained = _parts(network, train)
    inside = {id(part) for name in trained for part in network.get_submodule(name).modules()}
    layers: dict[str, nn.Module] = {}
    for target in [(nn.Linear, nn.MultiheadAttention)] if targets is None else targets:
        named = {name: layer for name, layer in _layers(network, target) if id(layer) not in inside}
        require(
            bool(named),
            f"LoRA's target {_spelled(target)} has no linear layer, embedding, Conv2d of one group or "
            f"MultiheadAttention that is not trained whole; the network has {_classes(network)}",
        )
        layers |= named
    network = _copy(network, [part for name in trained for part in network.get_submodule(name).parameters()])
    for name, layer in [(name, network.get_submodule(name)) for name in layers]:
        if isinstance(layer, nn.MultiheadAttention):
            for weight in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
                if getattr(layer, weight) is not None:
                    # In a tensor of its own: registering writes the numbers to itself, which counts as a write.
                    setattr(layer, weight, nn.Parameter(getattr(layer, weight).data, requires_grad=False))
                    part = LoRAWeight(getattr(layer, weight), rank, alpha)
                    parametrize.register_parametrization(layer, weight, part)
            if not isinstance(layer.out_proj, LoRALayer):  # which it is where it is a target too
                setattr(layer, "out_proj", LoRALayer(layer.out_proj, rank, alpha))  # noqa: B010 (of another type)
        elif not name:
            network = LoRALayer(layer, rank, alpha)
        elif not isinstance(network.get_submodule(name), LoRALayer):
            owner, _, leaf = name.rpartition(".")
            setattr(network.get_submodule(owner), leaf, LoRALayer(layer, rank, alpha))
    return network


def head(network: nn.Module, *names: Target) -> nn.Module:
    """A copy of a network, frozen but for the modules called ``names``, as in `lora`.

    Raises:
        InputError: no name, or one that is not in the network.

    Example:
        >>> import shoal
        >>> from torch import nn
        >>> network = shoal.head(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)), "2")
        >>> [tensor.requires_grad for tensor in network.parameters()]
        [False, False, True, True]
    """
    require(bool(names), f"a head has at least one module that is trained; the network has {_classes(network)}")
    return _copy(
        network, [part for name in _parts(network, names) for part in network.get_submodule(name).parameters()]
    )


def bitfit(network: nn.Module, train: Sequence[Target] = ()) -> nn.Module:
    """A copy of a network, frozen but for its biases and the modules of ``train``, named as in `lora`.

    Raises:
        InputError: the network has no biases, or not what ``train`` names.

    Source: Ben Zaken, Ravfogel, Goldberg 2022, "BitFit", ACL, arXiv:2106.10199.

    Example:
        >>> import shoal
        >>> network = shoal.bitfit(shoal.models.Logistic(4, 3))
        >>> {name: tensor.requires_grad for name, tensor in network.named_parameters()}
        {'output.weight': False, 'output.bias': True}
    """
    trained = [part for name in _parts(network, train) for part in network.get_submodule(name).parameters()]
    biases = [tensor for name, tensor in network.named_parameters() if name.rpartition(".")[2].endswith("bias")]
    require(bool(biases), f"the network has no biases for BitFit to train; it has {_classes(network)}")
    return _copy(network, [*biases, *trained])


def merged(model: Model, row: Tensor) -> dict[str, Tensor]:
    """The tensors of the network without adapters, by name, to whose weights the updates in ``row`` (P,) are added.

    The network to which `lora` was applied takes them by `load_state_dict`. Of a `peft` model they are those of its
    ``merge_and_unload()``, and of a network without LoRA those of `Model.state_dict`.

    Raises:
        InputError: an updated weight is also another layer's, which has no such update.
    """
    network: Any = model.network()
    network.load_state_dict(model.state_dict(row))
    if callable(unload := getattr(network, "merge_and_unload", None)):
        network = unload()
    for name, module in list(network.named_modules()):
        if parametrize.is_parametrized(module):
            for weight in [*module.parametrizations]:  # pyright: ignore[reportCallIssue, reportGeneralTypeIssues]
                parametrize.remove_parametrizations(module, weight)
        if isinstance(module, LoRALayer):
            weight, merged_weight = module.base_layer.weight, nn.Parameter(module.weight.detach())
            sharing = [alias for alias, tensor in network.named_parameters(remove_duplicate=False) if tensor is weight]
            require(
                len(sharing) == 1,
                f"{quoted(sharing)} are one tensor, to which no update of '{name}' alone can be added",
            )
            module.base_layer.weight = merged_weight
            owner, _, leaf = name.rpartition(".")
            if name:
                setattr(network.get_submodule(owner), leaf, module.base_layer)
            else:
                network = module.base_layer
    return {name: tensor.detach().clone().contiguous() for name, tensor in network.state_dict().items()}


@settings
class Adapter:
    """What is trained of a network that is otherwise frozen: low-rank updates, biases, or named modules.

    Args:
        name: ``lora``, `shoal.lora`; ``bitfit``, the biases; or ``head``, the modules of ``train`` alone.
        rank: of ``lora``.
        alpha: of ``lora``, whose update is scaled by alpha / rank; left out: 1.
        targets: of ``lora``: patterns of layers' names, or names of their classes: ``Linear``, ``Embedding``,
            ``Conv2d`` or ``MultiheadAttention``; left out: all linear layers and attention.
        train: modules that are trained as they are, such as the network's head.

    Raises:
        InputError: a head without modules, or LoRA's keys beside another name.

    Example:
        >>> from shoal.models import Adapter, Network, VectorShape
        >>> Network("logistic", adapter=Adapter("lora", rank=2)).model(VectorShape(inputs=5, classes=3)).parameters
        16
    """

    name: Literal["lora", "bitfit", "head"]
    rank: Positive = 8
    alpha: PositiveFloat | None = None
    targets: tuple[str, ...] | None = None
    train: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        require(self.name != "head" or len(self.train) > 0, "'train' is missing: the modules of the head")
        default = type(self)
        alike = self.rank == default.rank and self.alpha is None and self.targets is None
        require(self.name == "lora" or alike, f"'rank', 'alpha' and 'targets' are of 'lora'; '{self.name}' has none")

    def network(self, build: Callable[[], nn.Module]) -> nn.Module:
        """The network of ``build``, adapted."""
        match self.name:
            case "lora":
                return lora(build(), self.rank, self.alpha, self.targets, self.train)
            case "bitfit":
                return bitfit(build(), self.train)
            case "head":
                return head(build(), *self.train)


def _layers(network: nn.Module, target: Target) -> Iterator[tuple[str, nn.Module]]:
    """The layers that LoRA adapts among the modules that are ``target``, and inside them, by their names."""
    for name, module in _named(network, target):
        for below, layer in module.named_modules(prefix=name):
            adaptable = isinstance(layer, nn.Linear | nn.Embedding | nn.MultiheadAttention)
            if adaptable or (isinstance(layer, nn.Conv2d) and layer.groups == 1):
                yield below, layer


def _named(network: nn.Module, target: Target) -> Iterator[tuple[str, nn.Module]]:
    for name, module in network.named_modules():
        if isinstance(target, str):
            # A subclass of PyTorch's own counts as what it is a kind of, such as an attention's output layer.
            kinds = {kind.__name__ for kind in type(module).__mro__ if kind is not nn.Module}
            fits = target in kinds or fnmatchcase(name, target) or fnmatchcase(name, f"*.{target}")
        else:
            fits = isinstance(module, target)
        if fits:
            yield name, module


def _copy(network: nn.Module, trained: Sequence[Tensor]) -> nn.Module:
    """A copy of which the parameters ``trained`` are its own, and the others are shared and frozen."""
    own = {id(tensor) for tensor in trained}
    shared = {id(tensor): tensor.requires_grad_(False) for tensor in network.parameters() if id(tensor) not in own}
    copy = deepcopy(network, shared)
    frozen = {id(tensor) for tensor in network.parameters()} - own
    for tensor in copy.parameters():
        tensor.requires_grad_(id(tensor) not in frozen)
    return copy


def _parts(network: nn.Module, names: Sequence[Target]) -> list[str]:
    """The names of the modules that ``names`` name, each at least one with parameters."""
    parts: list[str] = []
    require(not isinstance(names, str), f"modules are named by a list of names; got {names!r}")
    for target in names:
        some = [name for name, module in _named(network, target) if any(True for _ in module.parameters())]
        require(
            bool(some),
            f"the network has no module {_spelled(target)} with parameters; it has "
            f"{quoted([name for name, _ in network.named_children()])}",
        )
        parts += some
    return parts


def _spelled(target: Target) -> str:
    kinds = target if isinstance(target, tuple) else (target,)
    return quoted([kind if isinstance(kind, str) else kind.__name__ for kind in kinds])


def _classes(network: nn.Module) -> str:
    return ", ".join(dict.fromkeys(type(module).__name__ for module in network.modules()))
