"""A local step that is more than following one gradient: of several batches, or of several vectors of a client."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from torch import Tensor

from shoal.core.errors import require
from shoal.engine.local_sgd import LocalSGD

Gradient = Callable[[Tensor, int], Tensor]
"""The gradients (u, P) of u clients' losses at their parameters (u, P) on one of a step's batches, counted from 0, with
weight decay; 0 for a client whose steps are done."""

_Item = TypeVar("_Item")


class StepRule(Protocol):
    """What a local step does with gradients, of one client as of many at once; a pure function.

    Every client's numbers are a row (R,): first the P parameters that it trains and sends, then what else the rule
    moves and the client keeps.

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
        """Batches that a step takes; where fewer are left of a client's, the last one stands for those that lack."""
        ...

    def step(self, rows: Tensor, gradient: Gradient, learning_rate: float) -> Tensor:
        """The rows (u, R) after a step from ``rows`` (u, R), which it leaves alone.

        A client whose gradients are all 0 must stay what it is.
        """
        ...


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


def in_groups(items: Iterable[_Item], size: int) -> Iterator[list[_Item]]:
    """``size`` items at a time, the last time perhaps fewer.

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
