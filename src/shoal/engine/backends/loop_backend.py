"""The loop backend: one owner after another on a thread's own network; best for convolutions on a CPU."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data.memory_format import gather, to_channels_first, to_channels_last, to_compute_dtype
from shoal.data.shards import Shards
from shoal.engine.backends.bound_network import BoundNetwork
from shoal.engine.linear_term import LinearTerm
from shoal.engine.local_sgd import GradientPrivacy, LocalRandomness, LocalSGD
from shoal.engine.step_protocols import Augmentation, Forward
from shoal.engine.step_rule import StepRule, in_groups

_AUGMENTED = 1024
"""Images augmented at a time, so that what this needs stays in tens of megabytes."""


class LoopBackend:
    """Trains owners one at a time."""

    def units(self, shards: Shards, local: LocalSGD) -> list[Tensor]:  # noqa: ARG002
        """The owners (n,) in the parts in which threads take them: largest first, so that no thread is left with a
        large one at the end, and a few at a time while many are left.
        """
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
        """Train some owners: each of the ``rows`` (u, P) becomes the result of training it on its owner's examples.

        Args:
            bound: this thread's network.
            rows: changed in place.
            shards: everybody's examples.
            owners: (u,) int64.
            randomness: of all owners, as `LocalSGD.randomness`.
            local: at the learning rate of the round.
            term: of all owners; None: none.
            rule: what a step does instead of following one gradient; rows are then (u, R). None: it does that.
        """
        constants = None if term is None else term.constants(owners)
        for i, (row, owner) in enumerate(zip(rows, owners.tolist(), strict=True)):
            added = None if constants is None else (constants[0][i], constants[1][i].to(row.device))
            bound.begin(row[: bound.row.numel()], local, added, int(randomness.seeds[owner]))
            mine = shards.owned(owner)
            if rule is not None:
                _train_by_rule(bound, row, _steps(bound, shards, mine, randomness, owner, local), local, rule)
                continue
            if local.gradient_privacy is not None and local.private:
                _train_privately(bound, shards, mine, randomness, owner, local, local.gradient_privacy)
            else:
                for batch in _steps(bound, shards, mine, randomness, owner, local):
                    bound.step(*batch)
            row.copy_(bound.row)


_Step = tuple[Tensor, Tensor, Tensor | None, Callable[[Forward, Tensor, Tensor], Tensor] | None]
"""Inputs, labels, weights of the examples (None: all 1), and what is minimised on them; None: their mean loss."""


def _steps(
    bound: BoundNetwork, shards: Shards, mine: Tensor, randomness: LocalRandomness, owner: int, local: LocalSGD
) -> Iterator[_Step]:
    """All batches, each with the mean loss, or with the objective, which draws from a stream of the owner's own."""
    seed = int(randomness.seeds[owner])
    augment = _augmenter(local, seed)
    batches = _batches(bound, shards, mine, randomness.orders[owner], local, augment, shards.weights_of(owner))
    if local.objective is None:
        for x, y, weights, _ in batches:
            yield x, y, weights, None
        return
    draws, first = Stream(seed)("objective").generator(), local.rounds_done * local.passes_of(len(mine))
    of, loss = local.objective.objective, bound.model.loss

    def value(number: int, forward: Forward, x: Tensor, y: Tensor) -> Tensor:
        return of(forward, x, y, loss, draws, number)

    for x, y, _, number in batches:
        yield x, y, None, partial(value, first + number)


def _train_by_rule(bound: BoundNetwork, row: Tensor, steps: Iterable[_Step], local: LocalSGD, rule: StepRule) -> None:
    """Move a row (R,) by steps of a rule."""
    for group in in_groups(steps, rule.batches):

        def gradient(parameters: Tensor, number: int, group: list[_Step] = group) -> Tensor:
            found = bound.gradient(parameters[0], *group[min(number, len(group) - 1)])
            if local.weight_decay:
                trainable = bound.model.layout.trainable
                found[:trainable].add_(parameters[0, :trainable], alpha=local.weight_decay)
            return found[None]

        row.copy_(rule.step(row[None], gradient, local.learning_rate)[0])


def _train_privately(
    bound: BoundNetwork,
    shards: Shards,
    mine: Tensor,
    randomness: LocalRandomness,
    owner: int,
    local: LocalSGD,
    rule: GradientPrivacy,
) -> None:
    """Train on clipped gradients with the owner's own noise."""
    own, augment = Stream(int(randomness.seeds[owner])), _augmenter(local, int(randomness.seeds[owner]))
    noise = own("noise").generator()
    if rule.poisson:
        batches = _poisson_batches(bound, shards, mine, own("coins").generator(), local, augment)
    else:
        batches = _batches(bound, shards, mine, randomness.orders[owner], local, augment)
    # Also a shorter last batch is divided by the nominal size: by its own, noise would be larger than stated.
    expected = local.batch(len(mine))
    for x, y, *_ in batches:
        bound.private_step(x, y, expected, rule, noise)


def _batches(
    bound: BoundNetwork,
    shards: Shards,
    mine: Tensor,
    orders: Tensor,
    local: LocalSGD,
    augment: "_Augment | None",
    weights: Tensor | None = None,
) -> Iterator["_Batch"]:
    """The batches of all steps on the examples ``mine`` (size,) of the shards, in ``orders`` (passes, size or more),
    each with its examples' part of ``weights`` (size,) and the number of its pass.
    """
    weights = None if weights is None else weights.to(bound.row)
    size = len(mine)
    batch, left = local.batch(size), local.steps_of(size)
    if batch == size:
        x, y = _examples(bound, shards, mine)
        for number in range(left):
            yield x if augment is None else augment(x), y, weights, number
        return
    for number, order in enumerate(orders[: local.passes_of(size)]):
        taken = order[: min(size, left * batch)]
        x, y = _examples(bound, shards, mine[taken])
        of_pass = None if weights is None else weights[taken.to(weights.device)]
        # A pass at once, which takes less time than batch by batch.
        x = x if augment is None else augment(x)
        for begin in range(0, len(y), batch):
            part = slice(begin, begin + batch)
            yield x[part], y[part], None if of_pass is None else of_pass[part], number
            left -= 1


def _poisson_batches(
    bound: BoundNetwork,
    shards: Shards,
    mine: Tensor,
    generator: torch.Generator,
    local: LocalSGD,
    augment: "_Augment | None",
) -> Iterator["_Batch"]:
    """As `_batches`, each a Poisson subsample, and all of one pass."""
    share = local.batch(len(mine)) / len(mine)
    for _ in range(local.steps_of(len(mine))):
        chosen = torch.rand(len(mine), generator=generator, dtype=torch.float64) < share
        x, y = _examples(bound, shards, mine[chosen])
        yield x if augment is None or not len(x) else augment(x), y, None, 0


_Augment = Callable[[Tensor], Tensor]
_Batch = tuple[Tensor, Tensor, Tensor | None, int]
"""Inputs, labels, weights (None: all 1) and the number of the pass."""


def _augmenter(local: LocalSGD, seed: int) -> _Augment | None:
    """What transforms the images of one owner, by draws from a stream of its own; None: nothing does."""
    if local.augmentation is None:
        return None
    return partial(_augmented, local.augmentation, Stream(seed)("augmentation").generator())


def _augmented(augmentation: Augmentation, generator: torch.Generator, x: Tensor) -> Tensor:
    require(
        x.dim() == 4 and x.is_floating_point(),
        f"augmentation is of images (channels, height, width); got inputs of shape {tuple(x.shape[1:])}",
    )
    parts = [to_channels_last(augmentation.augmented(part, generator)) for part in x.split(_AUGMENTED)]
    return to_channels_first(torch.cat(parts) if len(parts) > 1 else parts[0].contiguous())


def _examples(bound: BoundNetwork, shards: Shards, rows: Tensor) -> tuple[Tensor, Tensor]:
    chosen, device = rows.to(shards.y.device), bound.row.device
    return to_compute_dtype(gather(shards.x, chosen), bound.dtype, device), shards.y[chosen].to(device)


def parts_of(sizes: Tensor) -> list[Tensor]:
    """The positions of n owners of ``sizes`` (n,) in the parts in which they are trained, and their results added up.

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
