"""Local training as a value: plain SGD for some epochs or steps."""

import math
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.shards import Shards


class GradientPrivacy(Protocol):
    """What makes local steps differentially private: each example's gradient is clipped, and noise is added."""

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
        """Whether a step takes each example by a coin of its own, and not batches of shuffled examples."""
        ...


@dataclass(frozen=True, eq=False)
class LocalRandomness:
    """What is random in a round's local training of n owners.

    Args:
        orders: (n, passes, largest size), as `Stream.permutations`; no passes where every batch is full.
        seeds: (n,) int64, of what else each owner draws: noise, the masks of dropout, Poisson batches.
    """

    orders: Tensor
    seeds: Tensor


@dataclass(frozen=True)
class LocalSGD:
    """What a client does with its data in a round: SGD from the model it starts at.

    Args:
        epochs: passes over the local data, each in a new random order. Exactly one of ``epochs`` and ``steps``.
        steps: gradient steps, passing over the data in random orders as often as it takes.
        batch_size: examples a step, the last batch of a pass being smaller; None: all local data.
        learning_rate: of the first round.
        decay: factor on the learning rate from one round to the next.
        weight_decay: L2 coefficient, added to the gradient as ``weight_decay * parameters``.
        gradient_privacy: what makes the steps differentially private; None: nothing.

    Raises:
        InputError: a value outside its range.

    >>> LocalSGD(epochs=5, batch_size=20).steps_of(50)
    15
    """

    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    learning_rate: float = 0.1
    decay: float = 1.0
    weight_decay: float = 0.0
    gradient_privacy: GradientPrivacy | None = None

    def __post_init__(self) -> None:
        require(
            (self.epochs is None) != (self.steps is None),
            f"'local' takes either epochs or steps; got epochs = {self.epochs} and steps = {self.steps}",
        )
        for name in ("epochs", "steps", "batch_size"):
            value = getattr(self, name)
            require(value is None or value >= 1, f"'local.{name}' must be at least 1; got {value}")
        require(0 < self.learning_rate < math.inf, f"'local.learning_rate' must be above 0; got {self.learning_rate:g}")
        require(0 < self.decay <= 1, f"'local.decay' must be above 0 and at most 1; got {self.decay:g}")
        require(
            0 <= self.weight_decay < math.inf, f"'local.weight_decay' must be at least 0; got {self.weight_decay:g}"
        )

    @property
    def private(self) -> bool:
        """Whether steps are any other than plain SGD's: without clipping, noise and coins they are not."""
        rule = self.gradient_privacy
        return rule is not None and (rule.poisson or rule.noise_multiplier > 0 or rule.max_grad_norm < math.inf)

    def at(self, round_number: int) -> "LocalSGD":
        """What a client does in one round, at that round's learning rate; rounds count from 1.

        >>> LocalSGD(epochs=1, learning_rate=0.2, decay=0.5).at(3).learning_rate
        0.05
        """
        return replace(self, learning_rate=self.learning_rate * self.decay ** (round_number - 1), decay=1.0)

    def batch(self, size: int) -> int:
        """Examples in a full batch of an owner of ``size`` examples."""
        return size if self.batch_size is None else min(self.batch_size, size)

    def steps_of(self, size: int) -> int:
        """Gradient steps that an owner of ``size`` examples takes in a round."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * math.ceil(size / self.batch(size))

    def passes_of(self, size: int) -> int:
        """Passes over the data, begun or complete, that those steps need."""
        return math.ceil(self.steps_of(size) / math.ceil(size / self.batch(size)))

    def batches(self, sizes: Tensor) -> Tensor:
        """`batch` of each of n owners: sizes (n,) -> (n,) int64."""
        return sizes if self.batch_size is None else sizes.clamp(max=self.batch_size)

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
