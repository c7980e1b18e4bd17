"""Local training in the span of its inputs: a first layer's weight that is not written out at any step.

The gradient of the first layer's weight is D'X, so after steps on the inputs X (R, I) of a round the weight is
``W = W0 + A'X``, where A (R, H) adds up the D of each input, and a step's outputs of the layer are ``X_t W = X_t W0' +
(X_t X') A``. It is the same gradient descent, in another order of summation.

A step on the same inputs costs B*R*H multiplications there instead of 2*B*I*H. Where every step has inputs of its own,
as under augmentation, there are somewhat more of them; but all owners that start at one W0 share it, and no step reads
and writes a weight of each owner: it is written out once, at the end.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from shoal.engine.backends.dense_network import DenseNetwork, add_product, begin_at_fours
from shoal.engine.local_sgd import LocalSGD

_PASS = 6
"""Multiplications in the time in which an element of a weight is read or written."""


def cheaper_in_span(dense: DenseNetwork, batch: int, steps: int, *, fresh: bool) -> bool:
    """Whether ``steps`` on batches of so many examples take less time by `train_in_span`; see the module.

    Args:
        dense: the network.
        batch: B.
        steps: their number.
        fresh: whether each has inputs of its own; else all have the same.
    """
    outputs, inputs = dense.first.shape
    # A step on fresh inputs needs their products with those of the steps before.
    pairs = batch * batch * steps * (steps - 1) // 2 if fresh else batch * batch
    once = 2 * inputs * outputs * batch * (steps if fresh else 1) + pairs * inputs
    in_span = once + outputs * (pairs if fresh else steps * pairs)
    return in_span < steps * (2 * batch + 3 * _PASS) * inputs * outputs + 4 * _PASS * inputs * outputs


def train_in_span(
    dense: DenseNetwork,
    starts: Tensor,
    index: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    steps: int,
    local: LocalSGD,
) -> Tensor:
    """The parameters (u, P) after plain steps of u owners, all of whose batches are full.

    Args:
        dense: the network.
        starts: (S, P).
        index: (u,) int64, ascending, the start of each.
        inputs: x (u, R, I), labels y (u, B) and each example's share (u, B) of its owner's mean loss. R is B, or at
            least the number of steps times B: inputs for each step, and then zeros.
        steps: their number, at least 1, the same for all owners.
        local: learning rate and weight decay.
    """
    x, y, share = inputs
    batch, fresh, rate = y.shape[1], x.shape[1] > y.shape[1], local.learning_rate
    z0 = _times_starts(dense, starts, index, x)
    others = {slot.name: slot.view(starts)[index] for slot in dense.layout.slots if slot.name != dense.first.name}
    known = others | {dense.first.name: dense.first.view(starts)}
    padded = begin_at_fours(x)
    kernel = None if fresh else torch.bmm(x, padded.transpose(1, 2))
    moved, scale, shrink = z0.new_zeros(len(x), padded.shape[1], z0.shape[2]), 1.0, 1 - rate * local.weight_decay
    for step in range(steps):
        own = slice(step * batch, (step + 1) * batch) if fresh else slice(batch)
        # Multiples of four, of which those after the step's own are not moved yet.
        before = slice(-(-own.start // 4) * 4 if fresh else moved.shape[1])
        z = z0[:, own]
        if kernel is None and own.start:
            products = torch.bmm(x[:, own], x[:, before].transpose(1, 2))
            z = torch.baddbmm(z, products, moved[:, before], beta=scale)
        elif kernel is not None:
            z = torch.baddbmm(z, kernel, moved, beta=scale)
        factors = dense.products(known, x[:, own], y, share, dense.with_first_bias(z, others))
        if local.weight_decay:
            scale *= shrink
            for view in (moved, *others.values()):
                view.mul_(shrink)
        moved[:, own].sub_(factors[0][1], alpha=rate)
        dense.add(others, factors, -rate)
    size = dense.layout.size
    rows = starts.new_empty(len(index), -(-size // 4) * 4)[:, :size]
    views = dense.layout.views(torch.index_select(starts, 0, index, out=rows))
    add_product(views[dense.first.name].mul_(scale), moved[:, : x.shape[1]], x, 1.0)
    for name, other in others.items():
        views[name].copy_(other)
    return rows


def _times_starts(dense: DenseNetwork, starts: Tensor, index: Tensor, x: Tensor) -> Tensor:
    """``x_i W0_i'`` (u, R, H), H up to a multiple of four; owners that start together have one weight in memory."""
    found = list[Tensor]()
    counts: Sequence[int]
    distinct, counts = (each.tolist() for each in index.unique_consecutive(return_counts=True))
    for start, part in zip(distinct, x.split(counts), strict=True):
        weight = begin_at_fours(dense.first.view(starts[start])[None])
        found.append(torch.bmm(part, weight.transpose(1, 2).expand(len(part), -1, -1)))
    return torch.cat(found) if len(found) > 1 else found[0]
