"""Settings of local training (`LocalSGD`), and the protocols of its exchangeable parts."""

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
"""The network in training mode, a function from inputs (B, ...) to float32 outputs (B, C)."""

Gradient = Callable[[Tensor, int], Tensor]
"""A function that returns loss gradients (u, P), given parameters (u, P) of u clients and a batch's index in the step.

The gradients include weight decay. A client that has finished its steps has gradient 0."""

_UNSUPPORTED = ("Optimizer", "LBFGS", "SparseAdam")
"""LBFGS evaluates the loss several times per step, and SparseAdam needs sparse gradients."""

_OPTIMIZERS = sorted(
    name
    for name, value in vars(torch.optim).items()
    if isinstance(value, type) and issubclass(value, torch.optim.Optimizer) and name not in _UNSUPPORTED
)

_Item = TypeVar("_Item")


@dataclass(frozen=True, eq=False)
class LinearTerm:
    """The term ``strength_i * (theta - anchor_i) + offset_i``, added to every gradient of client i.

    A zero ``offset`` gives the gradient of the proximal term ``strength_i / 2 * |theta - anchor_i|^2`` (FedProx,
    Ditto). A zero ``strength`` gives a control variate (SCAFFOLD). The term does not change buffers, such as the
    statistics of batch norm.

    Args:
        strength: one coefficient per client, at least 0, (n,).
        anchors: the parameter vectors of A anchors, (A, P).
        anchor: the index of each client's anchor, (n,) int64; ``None`` gives client i ``anchors[i]``.
        offset: one constant vector per client, (n, P). ``None`` means 0.

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
        """Return the term of the clients at positions (u,)."""
        anchor = clients if self.anchor is None else self.anchor[clients]
        offset = None if self.offset is None else self.offset[clients]
        return LinearTerm(self.strength[clients], self.anchors, anchor, offset)

    def constants(self, clients: Tensor) -> tuple[Tensor, Tensor]:
        """Return strength (u, 1) and constant (u, P) of ``strength * theta - constant`` for ``clients`` (u,)."""
        term = self.take(clients)
        strength = term.strength[:, None].to(self.anchors)
        constant = strength * self.anchors[term.anchor]
        return strength, constant if term.offset is None else constant - term.offset.to(constant)


class StepRule(Protocol):
    """A local step that uses several gradients, or that changes several vectors per client.

    A rule is a pure function of the rows (R,) of one or more clients. The first P numbers of a row are the parameters
    that the client trains and sends. The remaining R - P numbers of a row are the rule's additional vectors.

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
        """The number of batches per step; if fewer batches are left, the client's last batch is repeated."""
        ...

    def step(self, rows: Tensor, gradient: Gradient, learning_rate: float) -> Tensor:
        """Return the rows (u, R) after a step from ``rows`` (u, R), which must not be modified.

        A client whose gradients are all 0 must keep its row.
        """
        ...


@runtime_checkable
class InputAugmentation(Protocol):
    """Random transformations of training images, drawn anew in every pass over the data."""

    def draws(self, count: int, generator: torch.Generator) -> Tensor:
        """Return the random draws (count, d), one row per image.

        Two consecutive calls must return the same rows as one call for the sum of their counts.

        Args:
            count: the number of images, at least 0.
            generator: the client's generator on the CPU, the only source of randomness.
        """
        ...

    def transformed(self, images: Tensor, draws: Tensor) -> Tensor:
        """Return the transformed images, (B, C, H, W).

        Each transformed image must depend only on its original image, because DP-SGD bounds the influence of every
        example.

        Args:
            images: float images of one or more clients, (B, C, H, W) with B at least 1, which must not be modified.
            draws: the random draws of each image, on the CPU, (B, d).
        """
        ...


@runtime_checkable
class Objective(Protocol):
    """The quantity that a local step minimises instead of the batch's mean loss."""

    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        """Return the batch's objective, a scalar to minimise.

        Args:
            forward: the network in training mode.
            x: inputs (B, ...).
            y: labels (B,), or targets (B, d) in a regression.
            loss: the per-example loss of outputs and labels.
            generator: the client's generator on the CPU, the only source of randomness.
            number: the index of the pass over the data, counted from 0 over the whole run.
        """
        ...


@settings
class TorchOptimizer:
    """An optimizer of `torch.optim`, created anew for every client in every round.

    The learning rate and the weight decay are those of local training.

    Args:
        name: the optimizer's class name, such as "AdamW".
        options: further arguments of the optimizer, such as ``{"betas": [0.9, 0.99]}``.

    Raises:
        InputError: `torch.optim` has no such optimizer, or the optimizer rejects the options.

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
            require(taken not in self.options, f"'options' must not contain '{taken}'; local training sets this option")
        # TOML has lists, but PyTorch expects tuples.
        options = {key: tuple(value) if isinstance(value, list) else value for key, value in self.options.items()}
        object.__setattr__(self, "options", options)
        self.made([torch.zeros(1)], 0.1, 0.0)

    def made(self, parameters: list[Tensor], learning_rate: float, weight_decay: float) -> torch.optim.Optimizer:
        """Create the optimizer for ``parameters``."""
        optimizer, options = getattr(torch.optim, self.name), self.options
        # Pass 0 too, because the default of some optimizers, such as AdamW, is not 0.
        if weight_decay or "weight_decay" in inspect.signature(optimizer).parameters:
            options = options | {"weight_decay": weight_decay}
        try:
            return optimizer(parameters, lr=learning_rate, **options)
        except (TypeError, ValueError, LookupError) as error:
            raise InputError(f"optimizer: torch.optim.{self.name} rejects these options ({error})") from error


def in_groups(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """Yield groups of ``size`` items; the last group may have fewer items.

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


PRIVATE_OBJECTIVE = "DP-SGD cannot minimise an objective other than the mean loss; remove DP-SGD or the objective"
_PRIVATE_WEIGHTS = (
    "DP-SGD cannot train with example weights; remove DP-SGD or choose an algorithm without example weights"
)
_WEIGHTED_OBJECTIVE = (
    "example weights exclude mixup, flooding, RelaxLoss and CCL; remove the defence or choose another algorithm"
)


@runtime_checkable
class GradientPrivacy(Protocol):
    """The settings of DP-SGD steps, which clip the gradient of each example and add noise."""

    @property
    def max_grad_norm(self) -> float:
        """The largest L2 norm of an example's gradient."""
        ...

    @property
    def noise_multiplier(self) -> float:
        """The ratio of the noise's standard deviation to `max_grad_norm`."""
        ...

    @property
    def poisson(self) -> bool:
        """Whether batches are Poisson subsamples instead of parts of shuffled passes."""
        ...


@dataclass(frozen=True, eq=False)
class LocalRandomness:
    """The random numbers of n owners' local training in one round.

    Args:
        orders: the order of each owner's examples in each pass, (n, passes, largest size), from `Stream.permutations`;
            there are 0 passes if every batch is full.
        seeds: one seed per owner for noise, dropout masks, Poisson subsamples and augmentation, (n,) int64.
    """

    orders: Tensor
    seeds: Tensor

    def take(self, owners: Tensor) -> "LocalRandomness":
        """Return the randomness of the owners at positions (u,)."""
        return LocalRandomness(self.orders[owners], self.seeds[owners])


@settings
class LocalSGD:
    """SGD on a client's data, starting from the received model.

    A step is ``v <- momentum * v + g + weight_decay * theta``, ``theta <- theta - learning_rate * v``, as in
    `torch.optim.SGD`, with v = 0 at the start of every round.

    Args:
        epochs: the number of passes over the local data per round, each in a new random order; the default is 1 if
            ``steps`` is not set.
        steps: the number of gradient steps per round, an alternative to ``epochs``.
        batch_size: the number of examples per step, or "all" for all local data; the last batch of a pass may be
            smaller.
        learning_rate: the learning rate of the first round.
        decay: the factor applied to the learning rate after every round.
        weight_decay: the L2 coefficient, added to the gradient as ``weight_decay * parameters``.
        momentum: the momentum coefficient.
        clip_norm: the largest L2 norm of a batch's gradient, as in `torch.nn.utils.clip_grad_norm_`; by default,
            gradients are not clipped.
        optimizer: an optimizer of `torch.optim`, slower than the default, SGD.
        gradient_privacy: the settings of DP-SGD (set by a defence); ``None`` trains without DP-SGD.
        dropout: the rate of the network's `SeededDropout` layers (set by a defence); ``None`` keeps each layer's rate.
        augmentation: the transformation of the images of every batch (set by a defence); ``None`` leaves images
            unchanged.
        multiplicity: the number of augmented copies of each example in a batch, whose gradients are averaged (set by a
            defence).
        objective: a replacement of the batch's mean loss (set by a defence); ``None`` uses the mean loss.
        share: the fraction of steps to perform, in (0, 1]; at least one step is performed (set by a defence).
        tensors: the names of the trained tensors, at least one (set by an algorithm, see `TrainingPhase`); ``None``
            trains all tensors.
        round_decay: the learning rate's decay per completed round (set by `at_round`).
        rounds_done: the number of completed rounds (set by `at_round`).

    Raises:
        InputError: a value is outside its allowed range, or two settings exclude each other, such as ``epochs`` and
            ``steps``.

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
    # Settings that differ only in the round are equal.
    round_decay: Annotated[float, Internal(), Field(gt=0, le=1)] = field(
        default=1.0, kw_only=True, compare=False, repr=False
    )
    rounds_done: Annotated[Count, Internal()] = field(default=0, kw_only=True, compare=False, repr=False)

    def __post_init__(self) -> None:
        require(
            self.epochs is None or self.steps is None,
            f"epochs and steps exclude each other (got epochs = {self.epochs} and steps = {self.steps}); remove one",
        )
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 1)
        require(
            self.optimizer is None or self.momentum == 0,
            "local.momentum is an option of SGD only; set an optimizer's momentum in 'optimizer.options'",
        )
        require(self.objective is None or not self.private, PRIVATE_OBJECTIVE)

    def check_example_weights(self) -> None:
        """Raise `InputError` if local training cannot weight the losses of examples."""
        require(not self.private, _PRIVATE_WEIGHTS)
        require(self.objective is None, _WEIGHTED_OBJECTIVE)

    def check_only_gradients_sent(self, also: str) -> None:
        """Raise `InputError` if DP-SGD is on, because clients send the data named by ``also`` without noise."""
        require(
            not self.private,
            f"DP-SGD does not protect {also}, which clients also send; remove DP-SGD or choose another algorithm",
        )

    @property
    def private(self) -> bool:
        """Whether DP-SGD is on, which means clipping, noise or Poisson subsampling."""
        rule = self.gradient_privacy
        return rule is not None and (rule.poisson or rule.noise_multiplier > 0 or rule.max_grad_norm < math.inf)

    def at_round(self, number: int) -> "LocalSGD":
        """Return the settings with the learning rate of round ``number``, counted from 1."""
        rate = self.learning_rate * self.decay ** (number - 1)
        return replace(self, learning_rate=rate, decay=1.0, round_decay=self.decay, rounds_done=number - 1)

    def rounds_earlier(self, rounds: int) -> "LocalSGD":
        """Return the settings with the learning rate of the round that came ``rounds`` earlier.

        >>> LocalSGD(epochs=1, learning_rate=0.2, decay=0.5).at_round(3).rounds_earlier(2).learning_rate
        0.2
        """
        earlier = max(0, self.rounds_done - rounds)
        return replace(self, learning_rate=self.learning_rate / self.round_decay**rounds, rounds_done=earlier)

    def batch(self, size: int) -> int:
        """Return the number of examples in a full batch of an owner with ``size`` examples."""
        return size if self.batch_size == "all" else min(self.batch_size, size)

    def steps_of(self, size: int) -> int:
        """Return the number of gradient steps per round of an owner with ``size`` examples."""
        if self.steps is not None:
            steps = self.steps
        else:
            assert self.epochs is not None
            steps = self.epochs * math.ceil(size / self.batch(size))
        return min(steps, max(1, round(self.share * steps)))

    def passes_of(self, size: int) -> int:
        """Return the number of passes over the data per round, counting an incomplete pass as one."""
        return math.ceil(self.steps_of(size) / math.ceil(size / self.batch(size)))

    def batches(self, sizes: Tensor) -> Tensor:
        """Return the full batch size of each owner, (n,) int64, for owners with ``sizes`` (n,) examples."""
        return sizes if self.batch_size == "all" else sizes.clamp(max=self.batch_size)

    def steps_each(self, sizes: Tensor) -> Tensor:
        """Return the number of gradient steps of each owner, (n,) int64, for owners with ``sizes`` (n,) examples."""
        distinct, index = sizes.unique(return_inverse=True)
        return torch.tensor([self.steps_of(size) for size in distinct.tolist()], dtype=torch.int64)[index]

    def full(self, sizes: Tensor) -> bool:
        """Return whether every step of every owner uses all of the owner's examples."""
        return bool((self.batches(sizes) == sizes).all())

    def randomness(self, shards: Shards, ids: Tensor, stream: Stream) -> LocalRandomness:
        """Return the random numbers of all owners' steps. An owner's numbers depend only on the owner's id and size."""
        sizes, seeds = shards.sizes, stream("own").seeds(ids)
        if self.full(sizes):
            return LocalRandomness(torch.empty(len(sizes), 0, 0, dtype=torch.int64), seeds)
        passes = max((self.passes_of(size) for size in sizes.unique().tolist()), default=0)
        return LocalRandomness(stream.permutations(ids, sizes, passes), seeds)

    def first_batch(self, shards: Shards, ids: Tensor, stream: Stream) -> Shards:
        """Return each owner's first batch of the round, on which clients of IFCA-MIR (Algorithm 1) choose a model."""
        sizes = shards.sizes
        if self.full(sizes):
            return shards
        order, batches = stream.permutations(ids, sizes, 1)[:, 0], self.batches(sizes)
        within = torch.arange(order.shape[1]) < batches[:, None]
        return Shards.from_indices(
            shards.x, shards.y, shards.indices[(shards.offsets[:-1, None] + order)[within]], batches
        )


def require_plain_sgd(local: LocalSGD, what: str) -> None:
    """Raise `InputError` unless a step of ``local`` is ``theta <- theta - learning_rate * gradient``."""
    plain = local.momentum == 0 and local.optimizer is None and local.clip_norm is None and local.tensors is None
    require(
        plain and not local.private,
        f"{what} needs plain SGD in local training; remove momentum, clipping, noise and 'optimizer'",
    )
