"""Local training as a value: the epochs or steps of SGD that a client does in a round."""

import math
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal, Protocol, runtime_checkable

import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Internal, NonNegativeFloat, Positive, PositiveFloat, settings
from shoal.data.shards import Shards
from shoal.engine.steps import Augmentation, Objective, TorchOptimizer

PRIVATE_OBJECTIVE = (
    "DP-SGD clips the gradient of each example's loss, so no other objective can be minimised with it; leave one out"
)

PRIVATE_WEIGHTS = (
    "DP-SGD bounds what an example changes by its own gradient, but weights of examples follow from all examples of a "
    "client; leave DP-SGD out, or take an algorithm that does not weigh examples"
)
WEIGHTED_OBJECTIVE = (
    "an algorithm that weighs examples minimises their weighted mean loss, and no other objective (mixup, flooding, "
    "RelaxLoss, CCL) in its place; leave one out"
)


@runtime_checkable
class GradientPrivacy(Protocol):
    """What makes local steps differentially private: each example's gradient is clipped, and noise is added.

    Example:
        >>> import shoal
        >>> from shoal.engine import GradientPrivacy
        >>> isinstance(shoal.DPSGD(noise_multiplier=1.0), GradientPrivacy)
        True
        >>> nothing = shoal.DPSGD(max_grad_norm=float("inf"), noise_multiplier=0.0)
        >>> rules = (None, nothing, shoal.DPSGD(noise_multiplier=1.0))
        >>> [shoal.LocalSGD(gradient_privacy=rule).private for rule in rules]
        [False, False, True]
    """

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
    """What is random in a round's local training of n owners.

    Args:
        orders: (n, passes, largest size), as `Stream.permutations`; no passes where every batch is full.
        seeds: (n,) int64, of what else each owner draws: noise, the masks of dropout, Poisson subsamples, augmentation.

    Example:
        >>> import torch, shoal
        >>> one = ([[-1.0], [1.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(epochs=3, batch_size=1)
        >>> randomness = local.randomness(federation.clients, federation.ids, shoal.Stream(0))
        >>> randomness.orders.shape
        torch.Size([2, 3, 2])
        >>> alone = local.randomness(federation.clients.take(torch.tensor([1])), torch.tensor([1]), shoal.Stream(0))
        >>> alone.orders.equal(randomness.take(torch.tensor([1])).orders)
        True
    """

    orders: Tensor
    seeds: Tensor

    def take(self, owners: Tensor) -> "LocalRandomness":
        """The randomness of ``owners`` (u,)."""
        return LocalRandomness(self.orders[owners], self.seeds[owners])


@settings
class LocalSGD:
    """SGD on a client's data, from the model at which it starts.

    A step is ``v <- momentum * v + g + weight_decay * theta``, ``theta <- theta - learning_rate * v``, as
    `torch.optim.SGD`'s, with v = 0 at the start of every round.

    Args:
        epochs: passes over the local data, each in a new random order; 1 where ``steps`` is not given either.
        steps: gradient steps instead of epochs, passing over the data in random orders as often as it takes.
        batch_size: examples in a step, the last batch of a pass being smaller; "all": all local data.
        learning_rate: of the first round.
        decay: factor on the learning rate from one round to the next, in (0, 1].
        weight_decay: L2 coefficient, added to the gradient as ``weight_decay * parameters``.
        momentum: in [0, 1).
        clip_norm: largest L2 norm of a batch's gradient, as `torch.nn.utils.clip_grad_norm_`; left out: no clipping.
        optimizer: any optimizer of `torch.optim` instead of SGD, by a general and slower path; left out: SGD.
        gradient_privacy: makes the steps differentially private (a defence sets it); None: nothing does.
        dropout: rate of the network's `SeededDropout` layers (a defence sets it); None: their own.
        augmentation: transforms the images of every batch (a defence sets it); None: nothing does.
        objective: what steps minimise instead of the batch's mean loss (a defence sets it); None: that loss.
        share: of the steps, in (0, 1], how many are taken, at least one (a defence sets it).
        tensors: names of those that are trained, at least one; the gradients of the others are neither computed nor
            clipped (an algorithm sets it, as `TrainingPhase`). None: all of them.
        round_decay: the factor by which the learning rate came down in each round before this one (`at_round` sets it).
        rounds_done: rounds before this one (`at_round` sets it).

    Raises:
        InputError: a value outside its range, both ``epochs`` and ``steps``, momentum beside an optimizer, or an
            objective beside private steps.

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
    augmentation: Annotated[Augmentation | None, Internal()] = field(default=None, kw_only=True)
    objective: Annotated[Objective | None, Internal()] = field(default=None, kw_only=True)
    share: Annotated[float, Internal(), Field(gt=0, le=1)] = field(default=1.0, kw_only=True)
    tensors: Annotated[frozenset[str] | None, Internal()] = field(default=None, kw_only=True)
    # No part of what a client does in this round, so two that differ in it alone are equal.
    round_decay: Annotated[float, Internal(), Field(gt=0, le=1)] = field(
        default=1.0, kw_only=True, compare=False, repr=False
    )
    # The same for all clusters of a round, which are all that is ever compared.
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
            "'momentum' is SGD's; give an optimizer's own in 'optimizer.options'",
        )
        require(self.objective is None or not self.private, PRIVATE_OBJECTIVE)

    def check_example_weights(self) -> None:
        """Raise `InputError` where steps of this kind cannot weigh the losses of examples."""
        require(not self.private, PRIVATE_WEIGHTS)
        require(self.objective is None, WEIGHTED_OBJECTIVE)

    def check_only_gradients_sent(self, also: str) -> None:
        """Raise `InputError` where steps are private, and clients send more than follows from them: ``also``."""
        require(
            not self.private,
            f"DP-SGD adds noise to gradients alone, but clients also send {also} without noise; leave DP-SGD out, or "
            "take another algorithm",
        )

    @property
    def private(self) -> bool:
        """Whether steps differ from plain SGD's. Without clipping, noise and Poisson subsampling they do not."""
        rule = self.gradient_privacy
        return rule is not None and (rule.poisson or rule.noise_multiplier > 0 or rule.max_grad_norm < math.inf)

    def at_round(self, number: int) -> "LocalSGD":
        """The settings of one round, with its learning rate; rounds count from 1.

        >>> LocalSGD(epochs=1, learning_rate=0.2, decay=0.5).at_round(3).learning_rate
        0.05
        """
        rate = self.learning_rate * self.decay ** (number - 1)
        return replace(self, learning_rate=rate, decay=1.0, round_decay=self.decay, rounds_done=number - 1)

    def rounds_earlier(self, rounds: int) -> "LocalSGD":
        """The settings of `at_round`, moved ``rounds`` back, with the learning rate of that round.

        >>> LocalSGD(epochs=1, learning_rate=0.2, decay=0.5).at_round(3).rounds_earlier(2).learning_rate
        0.2
        """
        earlier = max(0, self.rounds_done - rounds)
        return replace(self, learning_rate=self.learning_rate / self.round_decay**rounds, rounds_done=earlier)

    def batch(self, size: int) -> int:
        """Examples in a full batch of an owner of ``size`` examples."""
        return size if self.batch_size == "all" else min(self.batch_size, size)

    def steps_of(self, size: int) -> int:
        """Gradient steps that an owner of ``size`` examples takes in a round."""
        if self.steps is not None:
            return self._taken(self.steps)
        assert self.epochs is not None
        return self._taken(self.epochs * math.ceil(size / self.batch(size)))

    def _taken(self, steps: int) -> int:
        """How many of so many steps `share` leaves."""
        return min(steps, max(1, round(self.share * steps)))

    def passes_of(self, size: int) -> int:
        """Passes over the data, begun or complete, that those steps need."""
        return math.ceil(self.steps_of(size) / math.ceil(size / self.batch(size)))

    def batches(self, sizes: Tensor) -> Tensor:
        """`batch` of each of n owners: sizes (n,) -> (n,) int64."""
        return sizes if self.batch_size == "all" else sizes.clamp(max=self.batch_size)

    def steps_each(self, sizes: Tensor) -> Tensor:
        """`steps_of` each of n owners: sizes (n,) -> (n,) int64."""
        kinds, kind = sizes.unique(return_inverse=True)
        return torch.tensor([self.steps_of(size) for size in kinds.tolist()], dtype=torch.int64)[kind]

    def full(self, sizes: Tensor) -> bool:
        """Whether every step of every owner uses all its examples, so that their order means nothing."""
        return bool((self.batches(sizes) == sizes).all())

    def randomness(self, shards: Shards, ids: Tensor, stream: Stream) -> LocalRandomness:
        """What is random in all steps of all owners; what one draws does not depend on the others."""
        sizes, seeds = shards.sizes, stream("own").seeds(ids)
        if self.full(sizes):
            return LocalRandomness(torch.empty(len(sizes), 0, 0, dtype=torch.int64), seeds)
        passes = max((self.passes_of(size) for size in sizes.unique().tolist()), default=0)
        return LocalRandomness(stream.permutations(ids, sizes, passes), seeds)

    def first_batch(self, shards: Shards, ids: Tensor, stream: Stream) -> Shards:
        """Each owner's first batch of training, the mini-batch on which Algorithm 1 of IFCA-MIR chooses."""
        sizes = shards.sizes
        if self.full(sizes):
            return shards
        order, batches = stream.permutations(ids, sizes, 1)[:, 0], self.batches(sizes)
        within = torch.arange(order.shape[1]) < batches[:, None]
        return Shards.from_indices(
            shards.x, shards.y, shards.indices[(shards.offsets[:-1, None] + order)[within]], batches
        )


def require_plain_sgd(local: LocalSGD, what: str) -> None:
    """Raise `InputError` where steps of ``local`` are more than ``theta <- theta - learning_rate * gradient``.

    Example:
        >>> from shoal import LocalSGD
        >>> from shoal.engine import require_plain_sgd
        >>> require_plain_sgd(LocalSGD(weight_decay=0.1), "SCAFFOLD")
        >>> require_plain_sgd(LocalSGD(momentum=0.9), "SCAFFOLD")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        shoal.core.errors.InputError: SCAFFOLD needs plain SGD in local training: without momentum, ...
    """
    plain = local.momentum == 0 and local.optimizer is None and local.clip_norm is None and local.tensors is None
    require(
        plain and not local.private,
        f"{what} needs plain SGD in local training: without momentum, clipping, noise or an optimizer",
    )
