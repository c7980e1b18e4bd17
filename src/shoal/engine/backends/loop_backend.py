"""The loop backend, which trains data owners' models one by one on each thread; fastest for convolutions on a CPU."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.shards import Shards, gather, to_channels_first, to_channels_last, to_compute_dtype
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.local_sgd import (
    Forward,
    GradientPrivacy,
    InputAugmentation,
    LinearTerm,
    LocalRandomness,
    LocalSGD,
    StepRule,
    in_groups,
)

AUGMENTED = 1024
"""The number of images that are augmented at once, which bounds the memory to tens of megabytes."""

_Batch = tuple[Tensor, Tensor, Tensor | None, int]
"""Inputs, labels, example weights (``None``: all 1) and the index of the pass."""

_Step = tuple[Tensor, Tensor, Tensor | None, Callable[[Forward, Tensor, Tensor], Tensor] | None]
"""Inputs, labels, example weights (``None``: all 1) and the objective (``None``: the mean loss)."""


class LoopBackend:
    """A trainer of data owners' models, one owner at a time."""

    def units(self, shards: Shards, local: LocalSGD) -> list[Tensor]:  # noqa: ARG002
        """Split owners (n,) into parts for threads, by decreasing number of examples."""
        return parts_of(shards.sizes)

    def train(
        self,
        bound: BoundNetwork,
        rows: Tensor,
        shards: Shards,
        owners: Tensor,
        randomness: LocalRandomness,
        local: LocalSGD,
        term: LinearTerm | None = None,
        *,
        rule: StepRule | None = None,
    ) -> None:
        """Train the ``rows``, (u, P) or (u, R) with a step rule, of ``owners`` (u,) in place."""
        constants = None if term is None else term.constants(owners)
        for i, (row, owner) in enumerate(zip(rows, owners.tolist(), strict=True)):
            added = None if constants is None else (constants[0][i], constants[1][i].to(row.device))
            seed = int(randomness.seeds[owner])
            bound.begin(row[: bound.row.numel()], local, added, seed)
            batches = _Batches(
                bound, shards, local, shards.indices_of(owner), randomness.orders[owner], shards.weights_of(owner), seed
            )
            if rule is not None:
                _train_by_rule(bound, row, _steps(batches), local, rule)
                continue
            if local.gradient_privacy is not None and local.private:
                _train_privately(batches, local.gradient_privacy)
            else:
                for step in _steps(batches):
                    bound.step(*step)
            row.copy_(bound.row)


@dataclass(frozen=True, eq=False)
class _Batches:
    """The batches of an owner's local training.

    Args:
        bound: the network that trains on the batches.
        shards: all owners' examples.
        local: the settings of local training.
        examples: the indices of the owner's examples, (m,).
        orders: the order of the examples in each pass, (passes, m or more).
        weights: the examples' weights, (m,); ``None`` means all 1.
        seed: the seed of the owner's random streams.
    """

    bound: BoundNetwork
    shards: Shards
    local: LocalSGD
    examples: Tensor
    orders: Tensor
    weights: Tensor | None
    seed: int

    def generator(self, name: str) -> torch.Generator:
        """Return a new generator at the start of one of the owner's random streams."""
        return Stream(self.seed)(name).generator()

    def in_passes(self) -> Iterator[_Batch]:
        """Yield the batches of all steps, in passes over the examples."""
        local, size = self.local, len(self.examples)
        augment, weights = self._augment(), None if self.weights is None else self.weights.to(self.bound.row)
        batch, left = local.batch(size), local.steps_of(size)
        if batch == size:
            x, y = self._read(self.examples)
            weights = None if weights is None else self._copies(weights)
            for number in range(left):
                yield augment(x), y, weights, number
            return
        for number, order in enumerate(self.orders[: local.passes_of(size)]):
            taken = order[: min(size, left * batch)]
            x, y = self._read(self.examples[taken])
            of_pass = None if weights is None else self._copies(weights[taken.to(weights.device)])
            # A whole pass takes less time than its batches one by one.
            x, width = augment(x), batch * local.multiplicity
            for begin in range(0, len(y), width):
                part = slice(begin, begin + width)
                yield x[part], y[part], None if of_pass is None else of_pass[part], number
                left -= 1

    def poisson(self) -> Iterator[_Batch]:
        """Yield the batches of all steps as Poisson subsamples, without weights."""
        size, coins, augment = len(self.examples), self.generator("coins"), self._augment()
        share = self.local.batch(size) / size
        for _ in range(self.local.steps_of(size)):
            chosen = torch.rand(size, generator=coins, dtype=torch.float64) < share
            x, y = self._read(self.examples[chosen])
            yield augment(x) if len(x) else x, y, None, 0

    def _read(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and labels, with each example in `LocalSGD.multiplicity` consecutive rows."""
        indices, device = self._copies(indices).to(self.shards.y.device), self.bound.row.device
        x = to_compute_dtype(gather(self.shards.x, indices), self.bound.dtype, device)
        return x, self.shards.y[indices].to(device)

    def _copies(self, rows: Tensor) -> Tensor:
        copies = self.local.multiplicity
        return rows if copies == 1 else rows.repeat_interleave(copies, dim=0)

    def _augment(self) -> Callable[[Tensor], Tensor]:
        """Return the transformation of the owner's images; the identity without augmentation."""
        if self.local.augmentation is None:
            return lambda x: x
        augmentation, generator = self.local.augmentation, self.generator("augmentation")
        return lambda x: augmented(augmentation, x, augmentation.draws(len(x), generator))


def _steps(batches: _Batches) -> Iterator[_Step]:
    """Yield all batches with their objective."""
    objective = batches.local.objective
    if objective is None:
        for x, y, weights, _ in batches.in_passes():
            yield x, y, weights, None
        return
    draws, loss = batches.generator("objective"), batches.bound.model.loss
    first = batches.local.rounds_done * batches.local.passes_of(len(batches.examples))

    def value(number: int, forward: Forward, x: Tensor, y: Tensor) -> Tensor:
        return objective.objective(forward, x, y, loss, draws, number)

    for x, y, _, number in batches.in_passes():
        yield x, y, None, partial(value, first + number)


def _train_by_rule(bound: BoundNetwork, row: Tensor, steps: Iterable[_Step], local: LocalSGD, rule: StepRule) -> None:
    """Train a row (R,) in place by a step rule."""
    for group in in_groups(steps, rule.batches):

        def gradient(params: Tensor, number: int, group: list[_Step] = group) -> Tensor:
            flat = bound.gradient(params[0], *group[min(number, len(group) - 1)])
            if local.weight_decay:
                trainable = bound.model.layout.trainable
                flat[:trainable].add_(params[0, :trainable], alpha=local.weight_decay)
            return flat[None]

        row.copy_(rule.step(row[None], gradient, local.learning_rate)[0])


def _train_privately(batches: _Batches, rule: GradientPrivacy) -> None:
    """Train on clipped gradients with the owner's own noise."""
    noise = batches.generator("noise")
    # Dividing a shorter last batch by its own size would make the noise larger than stated.
    expected = batches.local.batch(len(batches.examples))
    for x, y, *_ in batches.poisson() if rule.poisson else batches.in_passes():
        batches.bound.private_step(x, y, expected, rule, noise, batches.local.multiplicity)


def augmented(augmentation: InputAugmentation, x: Tensor, draws: Tensor) -> Tensor:
    """Return augmented images x (B, C, H, W) in the channels-last format, given random ``draws`` (B, d)."""
    require(
        x.dim() == 4 and x.is_floating_point(),
        f"augmentation needs images of shape (channels, height, width) (got inputs of shape {tuple(x.shape[1:])})",
    )
    pairs = zip(x.split(AUGMENTED), draws.split(AUGMENTED), strict=True)
    parts = [to_channels_last(augmentation.transformed(*pair)) for pair in pairs]
    return to_channels_first(torch.cat(parts) if len(parts) > 1 else parts[0].contiguous())


def parts_of(sizes: Tensor) -> list[Tensor]:
    """Split owners with ``sizes`` (n,) examples into parts that are trained and summed together.

    >>> parts_of(torch.tensor([2, 5, 2]))
    [tensor([1]), tensor([0]), tensor([2])]
    """
    queue = sizes.argsort(descending=True, stable=True)
    parts, taken = [], 0
    while taken < len(queue):
        count = min(max((len(queue) - taken) // 32, 1), 16)
        parts.append(queue[taken : taken + count])
        taken += count
    return parts
