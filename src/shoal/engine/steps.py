"""The parts of a local step that algorithms and defences may replace: gradient, loss, inputs and optimizer."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from shoal.core.errors import InputError, require, suggest
from shoal.core.settings import settings
from shoal.models.model import Loss

Forward = Callable[[Tensor], Tensor]
"""The network in training mode: inputs (B, ...) to outputs (B, C), float32."""

Gradient = Callable[[Tensor, int], Tensor]
"""The gradients (u, P) of u clients' losses, with weight decay, at their parameters (u, P) on one of a step's batches,
counted from 0; 0 for a client whose steps are done."""

_UNSUPPORTED = ("Optimizer", "LBFGS", "SparseAdam")
"""LBFGS evaluates the loss several times in a step; SparseAdam needs sparse gradients."""

_OPTIMIZERS = sorted(
    name
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name not in _UNSUPPORTED
)

_Item = TypeVar("_Item")


@dataclass(frozen=True, eq=False)
class LinearTerm:
    """Adds ``strength_i * (theta - anchor_i) + offset_i`` to every gradient of client i.

    With ``offset`` = 0 it is the gradient of the proximal term ``strength_i / 2 * |theta - anchor_i|^2`` (FedProx,
    Ditto); with ``strength`` = 0 it is a control variate (SCAFFOLD). Buffers (batch norm's statistics) are left alone.

    Args:
        strength: (n,) at least 0.
        anchors: (A, P).
        anchor: (n,) int64, the index of each client's anchor; None: client i has ``anchors[i]``.
        offset: (n, P); None: 0.

    Example:
        >>> import torch
        >>> from shoal.engine import LinearTerm
        >>> term = LinearTerm(strength=torch.tensor([0.5]), anchors=torch.tensor([[1.0, 3.0]]))
        >>> theta = torch.tensor([[3.0, 3.0]])
        >>> strength, constant = term.constants(torch.tensor([0]))
        >>> strength * theta - constant
        tensor([[1., 0.]])
    """

    strength: Tensor
    anchors: Tensor
    anchor: Tensor | None = None
    offset: Tensor | None = None

    def take(self, clients: Tensor) -> "LinearTerm":
        """The term of ``clients`` (u,)."""
        anchor = clients if self.anchor is None else self.anchor[clients]
        offset = None if self.offset is None else self.offset[clients]
        return LinearTerm(self.strength[clients], self.anchors, anchor, offset)

    def constants(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """The term as ``strength * theta - constant``: strength (u, 1) and constant (u, P) of ``clients`` (u,)."""
        term = self.take(clients)
        strength = term.strength[:, None].to(self.anchors)
        constant = strength * self.anchors[term.anchor]
        return strength, constant if term.offset is None else constant - term.offset.to(constant)


class StepRule(Protocol):
    """A local step that takes several gradients or moves several vectors; a pure function of one client or of many.

    Each client has a row (R,): the P parameters that it trains and sends, then what else the rule moves.

    Example:
        >>> import torch
        >>> from dataclasses import dataclass
        >>> from shoal.engine import StepRule
        >>> @dataclass(frozen=True)
        ... class Lookahead:
        ...     batches: int = 2
        ...     def step(self, rows, gradient, learning_rate):
        ...         ahead = rows - learning_rate * gradient(rows, 0)
        ...         return rows - learning_rate * gradient(ahead, 1)
        ...
        >>> rule: StepRule = Lookahead()
        >>> rule.step(torch.ones(1, 1), lambda rows, batch: rows, 0.5)  # of the loss x^2 / 2
        tensor([[0.7500]])
    """

    @property
    def batches(self) -> int:
        """Batches per step; where a client has fewer left, its last one is used again."""
        ...

    def step(self, rows: Tensor, gradient: Gradient, learning_rate: float) -> Tensor:
        """The rows (u, R) after a step from ``rows`` (u, R), which stay unchanged.

        A client whose gradients are all 0 must keep its row.
        """
        ...


@runtime_checkable
class InputAugmentation(Protocol):
    """Random transformations of the images that a client trains on, drawn anew in every pass."""

    def draws(self, count: int, generator: torch.Generator) -> Tensor:
        """Draws (count, d) for as many images; those for two counts, one after the other, are those for their sum.

        Args:
            count: at least 0.
            generator: the client's, on the CPU; the source of all randomness.
        """
        ...

    def transformed(self, images: Tensor, draws: Tensor) -> Tensor:
        """Images of the same shape; each depends on its own original alone, so that DP-SGD bounds its influence, and
        not on the others that are transformed with it.

        Args:
            images: (B, C, H, W) float, of one client or of many, B at least 1; not changed.
            draws: (B, d), of each image, on the CPU.
        """
        ...


@runtime_checkable
class Objective(Protocol):
    """The quantity that a local step minimises instead of the batch's mean loss."""

    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        """A scalar to differentiate.

        Args:
            forward: the network.
            x: inputs (B, ...).
            y: labels (B,); of a regression (B, d).
            loss: per-example loss of outputs and labels.
            generator: the client's, on the CPU; the source of all randomness.
            number: of the pass over the data in the whole training, from 0: rounds done times passes per round, plus
                the pass in this round.
        """
        ...


@settings
class TorchOptimizer:
    """An optimizer of `torch.optim`, which every client starts anew in every round.

    Learning rate and weight decay are those of `LocalSGD`.

    Args:
        name: such as "AdamW".
        options: further arguments of the optimizer, such as ``{"betas": [0.9, 0.99]}``.

    Raises:
        InputError: an optimizer that `torch.optim` does not have, or options that it does not take.

    Example:
        >>> import torch
        >>> from shoal import TorchOptimizer
        >>> TorchOptimizer("Adam").made([torch.zeros(2)], 0.1, 0.0).defaults["lr"]
        0.1
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require(
            self.name in _OPTIMIZERS, f"torch.optim has no optimizer '{self.name}'; {suggest(self.name, _OPTIMIZERS)}"
        )
        for taken in ("lr", "weight_decay", "params"):
            require(taken not in self.options, f"'options' must not have '{taken}': local training says it")
        # TOML has lists where PyTorch has tuples.
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in self.options.items()}
        object.__setattr__(self, "options", options)
        self.made([torch.zeros(1)], 0.1, 0.0)

    def made(self, parameters: list[Tensor], learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
        """A new optimizer of ``parameters``."""
        optimizer, options = getattr(torch.optim, self.name), self.options
        # Also 0, which is not every optimizer's default, such as AdamW's.
        if weight_decay or "weight_decay" in inspect.signature(optimizer).parameters:
            options = options | {"weight_decay": weight_decay}
        try:
            return optimizer(parameters, lr=learning_rate, **options)
        except (TypeError, ValueError, LookupError) as error:
            raise InputError(f"torch.optim.{self.name} cannot be made: {error}") from error


def in_groups(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Groups of ``size`` items; the last may have fewer.

    >>> list(in_groups("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    group: list[_Item] = []
    for item in items:
        group.append(item)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
