"""Local training as a value: the epochs or steps of SGD of a client in a round, and what may replace their parts."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import InputError, require, suggest
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Internal, NonNegativeFloat, Positive, PositiveFloat, settings
from shoal.data.shards import Shards
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
        """Return the term of ``clients`` (u,)."""
        anchor = clients if self.anchor is None else self.anchor[clients]
        offset = None if self.offset is None else self.offset[clients]
        return LinearTerm(self.strength[clients], self.anchors, anchor, offset)

    def constants(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of ``clients`` (u,) as ``strength * theta - constant``: strength (u, 1), constant (u, P)."""
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
        """Return the rows (u, R) after a step from ``rows`` (u, R), which stay unchanged.

        A client whose gradients are all 0 must keep its row.
        """
        ...


@runtime_checkable
class InputAugmentation(Protocol):
    """Random transformations of the images that a client trains on, drawn anew in every pass."""

    def draws(self, count: int, generator: torch.Generator) -> Tensor:
        """Return draws (count, d), one per image; draws for two counts in turn equal those for the counts' sum.

        Args:
            count: the number of images, at least 0.
            generator: the client's generator, on the CPU; the source of all randomness.
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
        """Return a scalar to differentiate.

        Args:
            forward: the network.
            x: inputs (B, ...).
            y: labels (B,); in a regression targets (B, d).
            loss: per-example loss of outputs and labels.
            generator: the client's generator, on the CPU; the source of all randomness.
            number: the number of the pass over the data in the whole training, from 0: rounds done times passes per
                round, plus the pass in this round.
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
        """Return a new optimizer of ``parameters``."""
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


PRIVATE_OBJECTIVE = (
    "DP-SGD clips the gradient of each example's loss, so no other objective can be minimised with it; leave one out"
)
_PRIVATE_WEIGHTS = (
    "DP-SGD bounds what an example changes by its own gradient, but weights of examples follow from all examples of a "
    "client; leave DP-SGD out, or take an algorithm that does not weigh examples"
)
_WEIGHTED_OBJECTIVE = (
    "an algorithm that weighs examples minimises their weighted mean loss, and no other objective (mixup, flooding, "
    "RelaxLoss, CCL) in its place; leave one out"
)


@runtime_checkable
class GradientPrivacy(Protocol):
    """The rule of differentially private steps: clipped gradients of single examples, with noise."""

    @property
    def max_grad_norm(self) -> float:
        """The bound on the L2 norm of an example's gradient."""
        ...

    @property
    def noise_multiplier(self) -> float:
        """The noise's standard deviation, in units of that bound."""
        ...

    @property
    def poisson(self) -> bool:
        """Whether batches are Poisson subsamples instead of parts of shuffled passes."""
        ...


@dataclass(frozen=True, eq=False)
class LocalRandomness:
    """The randomness of a round's local training of n owners.

    Args:
        orders: (n, passes, largest size), as `Stream.permutations`; no passes if every batch is full.
        seeds: (n,) int64, for each owner's noise, dropout masks, Poisson subsamples and augmentation.
    """

    orders: Tensor
    seeds: Tensor

    def take(self, owners: Tensor) -> "LocalRandomness":
        """Return the randomness of ``owners`` (u,)."""
        return LocalRandomness(self.orders[owners], self.seeds[owners])


@settings
class LocalSGD:
    """SGD on a client's data, starting from the received model.

    A step is ``v <- momentum * v + g + weight_decay * theta``, ``theta <- theta - learning_rate * v``, as in
    `torch.optim.SGD`, with v = 0 at the start of every round.

    Args:
        epochs: passes over the local data, each in a new random order; 1 without ``steps``.
        steps: gradient steps instead of epochs, over as many passes as they need.
        batch_size: examples per step, fewer in the last batch of a pass; "all": all local data.
        learning_rate: the learning rate of the first round.
        decay: factor on the learning rate from one round to the next, in (0, 1].
        weight_decay: L2 coefficient, added to the gradient as ``weight_decay * parameters``.
        momentum: the factor on the previous step, in [0, 1).
        clip_norm: largest L2 norm of a batch's gradient, as `torch.nn.utils.clip_grad_norm_`; None: no clipping.
        optimizer: an optimizer of `torch.optim`, which is slower; None: SGD.
        gradient_privacy: rule of differentially private steps (set by a defence); None: plain steps.
        dropout: rate of the network's `SeededDropout` layers (set by a defence); None: their own.
        augmentation: transformation of the images of every batch (set by a defence); None: no transformation.
        multiplicity: augmented copies of each example in a batch; their mean gradient is the example's (set by a
            defence).
        objective: replacement of the batch's mean loss (set by a defence); None: the mean loss.
        share: fraction of the steps to take, in (0, 1], at least one step (set by a defence).
        tensors: names of the trained tensors, at least one; gradients of the others are neither computed nor clipped
            (set by an algorithm, as `TrainingPhase`). None: all of them.
        round_decay: decay of the learning rate per earlier round (set by `at_round`).
        rounds_done: earlier rounds (set by `at_round`).

    Raises:
        InputError: a value outside its range, both ``epochs`` and ``steps``, momentum with an optimizer, or an
            objective with private steps.

    Example:
        >>> from shoal import LocalSGD
        >>> LocalSGD(epochs=5, batch_size=20).steps_of(50)
        15
    """

    epochs: Positive | None = None
    steps: Positive | None = None
    batch_size: Positive | Literal["all"] = 32
    learning_rate: PositiveFloat = 0.1
    decay: Annotated[float, Field(gt=0, le=1, strict=True)] = 1.0
    weight_decay: NonNegativeFloat = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.0
    clip_norm: PositiveFloat | None = None
    optimizer: TorchOptimizer | None = None
    gradient_privacy: Annotated[GradientPrivacy | None, Internal()] = field(default=None, kw_only=True)
    dropout: Annotated[float | None, Internal(), Field(ge=0, lt=1)] = field(default=None, kw_only=True)
    augmentation: Annotated[InputAugmentation | None, Internal()] = field(default=None, kw_only=True)
    multiplicity: Annotated[Positive, Internal()] = field(default=1, kw_only=True)
    objective: Annotated[Objective | None, Internal()] = field(default=None, kw_only=True)
    share: Annotated[float, Internal(), Field(gt=0, le=1)] = field(default=1.0, kw_only=True)
    tensors: Annotated[frozenset[str] | None, Internal()] = field(default=None, kw_only=True)
    # The round alone: settings that differ in it are equal.
    round_decay: Annotated[float, Internal(), Field(gt=0, le=1)] = field(
        default=1.0, kw_only=True, compare=False, repr=False
    )
    rounds_done: Annotated[Count, Internal()] = field(default=0, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        require(
            self.epochs is None or self.steps is None,
            f"give either epochs or steps; got epochs = {self.epochs} and steps = {self.steps}",
        )
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)
        require(
            self.optimizer is None or self.momentum == 0,
            "'momentum' belongs to SGD; set that of an optimizer in 'optimizer.options'",
        )
        require(self.objective is None or not self.private, PRIVATE_OBJECTIVE)

    def check_example_weights(self) -> None:
        """Raise `InputError` unless these steps can weight the losses of examples."""
        require(not self.private, _PRIVATE_WEIGHTS)
        require(self.objective is None, _WEIGHTED_OBJECTIVE)

    def check_only_gradients_sent(self, also: str) -> None:
        """Raise `InputError` where steps are private but clients ``also`` send data without noise."""
        require(
            not self.private,
            f"DP-SGD adds noise to gradients only, but clients also send {also}; leave DP-SGD out, or choose another "
            "algorithm",
        )

    @property
    def private(self) -> bool:
        """Whether steps have clipping, noise or Poisson subsampling, and so differ from plain SGD's."""
        rule = self.gradient_privacy
        return rule is not None and (rule.poisson or rule.noise_multiplier > 0 or rule.max_grad_norm < math.inf)

    def at_round(self, number: int) -> "LocalSGD":
        """Return the settings of one round, with its learning rate; rounds count from 1."""
        rate = self.learning_rate * self.decay ** (number - 1)
        return replace(self, learning_rate=rate, decay=1.0, round_decay=self.decay, rounds_done=number - 1)

    def rounds_earlier(self, rounds: int) -> "LocalSGD":
        """Return the settings of the round that was ``rounds`` earlier, with its learning rate.

        >>> LocalSGD(epochs=1, learning_rate=0.2, decay=0.5).at_round(3).rounds_earlier(2).learning_rate
        0.2
        """
        earlier = max(0, self.rounds_done - rounds)
        return replace(self, learning_rate=self.learning_rate / self.round_decay**rounds, rounds_done=earlier)

    def batch(self, size: int) -> int:
        """Return examples in a full batch of an owner of ``size`` examples."""
        return size if self.batch_size == "all" else min(self.batch_size, size)

    def steps_of(self, size: int) -> int:
        """Gradient steps that an owner of ``size`` examples takes in a round."""
        if self.steps is not None:
            steps = self.steps
        else:
            assert self.epochs is not None
            steps = self.epochs * math.ceil(size / self.batch(size))
        return min(steps, max(1, round(self.share * steps)))

    def passes_of(self, size: int) -> int:
        """Passes over the data, complete or not, that these steps need."""
        return math.ceil(self.steps_of(size) / math.ceil(size / self.batch(size)))

    def batches(self, sizes: Tensor) -> Tensor:
        """`batch` of each of n owners: sizes (n,) -> (n,) int64."""
        return sizes if self.batch_size == "all" else sizes.clamp(max=self.batch_size)

    def steps_each(self, sizes: Tensor) -> Tensor:
        """`steps_of` each of n owners: sizes (n,) -> (n,) int64."""
        distinct, index = sizes.unique(return_inverse=True)
        return torch.tensor([self.steps_of(size) for size in distinct.tolist()], dtype=torch.int64)[index]

    def full(self, sizes: Tensor) -> bool:
        """Return whether every step of every owner uses all its examples, so that their order is irrelevant."""
        return bool((self.batches(sizes) == sizes).all())

    def randomness(self, shards: Shards, ids: Tensor, stream: Stream) -> LocalRandomness:
        """Return the randomness of all steps of all owners; one owner's does not depend on the others."""
        sizes, seeds = shards.sizes, stream("own").seeds(ids)
        if self.full(sizes):
            return LocalRandomness(torch.empty(len(sizes), 0, 0, dtype=torch.int64), seeds)
        passes = max((self.passes_of(size) for size in sizes.unique().tolist()), default=0)
        return LocalRandomness(stream.permutations(ids, sizes, passes), seeds)

    def first_batch(self, shards: Shards, ids: Tensor, stream: Stream) -> Shards:
        """Each owner's first batch, the mini-batch on which Algorithm 1 of IFCA-MIR chooses."""
        sizes = shards.sizes
        if self.full(sizes):
            return shards
        order, batches = stream.permutations(ids, sizes, 1)[:, 0], self.batches(sizes)
        within = torch.arange(order.shape[1]) < batches[:, None]
        return Shards.from_indices(
            shards.x, shards.y, shards.indices[(shards.offsets[:-1, None] + order)[within]], batches
        )


def require_plain_sgd(local: LocalSGD, what: str) -> None:
    """Raise `InputError` where steps of ``local`` are more than ``theta <- theta - learning_rate * gradient``."""
    plain = local.momentum == 0 and local.optimizer is None and local.clip_norm is None and local.tensors is None
    require(
        plain and not local.private,
        f"{what} needs plain SGD in local training: without momentum, clipping, noise or an optimizer",
    )
