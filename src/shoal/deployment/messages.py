"""What passes between the server and a client in a round, and what the server refuses to take."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shoal.core.errors import ShoalError, require
from shoal.core.representation import one_line
from shoal.data import Standardizer
from shoal.engine import ClientUpdate


class RejectedReplyError(ShoalError):
    """A reply that is not merged; the text says why."""


@dataclass(frozen=True, eq=False)
class Offer:
    """What the server sends a client in a round.

    Args:
        round: number of the round, from 1.
        client: the client's id, by which its random streams are named.
        config: the run's configuration, as TOML.
        models: (K, P) float32, what the client may choose among.
        risks: (K,) float64, the server's estimate of each model's risk.
        directives: what the server asks of each model's clients, by name; (K,) float64 each.
        classes: the names of the classes, by number; none where the data are a named set.
        scale: by what the columns of tables are standardised, that of the server's own table; None: of other data.
    """

    round: int
    client: int
    config: str
    models: Tensor
    risks: Tensor
    directives: Mapping[str, Tensor] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    scale: Standardizer | None = None
    __repr__ = one_line


@dataclass(frozen=True)
class Refusal:
    """A client's answer that it does not train, and why."""

    reason: str


@dataclass(frozen=True)
class Limits:
    """What the server takes from a client.

    Args:
        max_examples: the largest number of examples that is believed.
        max_update_norm: the largest L2 norm of an update, in units of parameters; `math.inf`: any.
    """

    max_examples: int = 10_000_000
    max_update_norm: float = math.inf

    def __post_init__(self) -> None:
        require(self.max_examples >= 1, f"'max-examples' must be at least 1; got {self.max_examples}")
        require(self.max_update_norm > 0, f"'max-update-norm' must be above 0; got {self.max_update_norm:g}")


def check_update(update: ClientUpdate, offered: Tensor, limits: Limits, *, counts_best: bool) -> None:
    """Raise `RejectedReplyError` unless ``update`` can be merged.

    Args:
        update: a client's, whose ``end`` is (P,) float32 already.
        offered: (K, P), the models that it was sent.
        limits: of the server.
        counts_best: whether the algorithm needs `ClientUpdate.best`.
    """
    clusters = len(offered)
    reject_unless(0 <= update.cluster < clusters, f"cluster {update.cluster} is none of the {clusters} offered models")
    known = 1 <= update.examples <= limits.max_examples
    reject_unless(known, f"{update.examples} examples are not in [1, {limits.max_examples}]")
    shape, wanted = tuple(update.end.shape), tuple(offered.shape[1:])
    reject_unless(shape == wanted, f"a model of shape {shape}, not {wanted}")
    reject_unless(bool(torch.isfinite(update.end).all()), "the model has numbers that are NaN or infinite")
    norm = float((update.end - offered[update.cluster]).double().norm())
    reject_unless(norm <= limits.max_update_norm, f"an update of norm {norm:.4g}, above {limits.max_update_norm:g}")
    if counts_best:
        best = [] if update.best is None else update.best.tolist()
        reject_unless(len(best) == clusters, f"{len(best)} counts of examples for {clusters} models")
        reject_unless(
            min(best) >= 0 and sum(best) == update.examples,
            f"counts by model {best} that are not of {update.examples} examples",
        )


def reject_unless(condition: bool, reason: str) -> None:
    """Raise `RejectedReplyError` with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise RejectedReplyError(reason)
