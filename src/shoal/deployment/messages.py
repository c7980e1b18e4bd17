"""Messages between the server and a client in a round, and the server's checks of a client's update."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, get_args

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms import Algorithms
from shoal.core.errors import ShoalError, require
from shoal.core.representation import one_line
from shoal.core.settings import Positive, settings
from shoal.data import Standardizer
from shoal.engine import Algorithm, ClientUpdate, RemoteRounds, RunsRemotely, remote_rounds

_LONGEST = 200


def plain(text: object) -> str:
    r"""At most 200 printable characters of a stranger's text, on one line, and nothing that a spreadsheet calculates.

    >>> plain("lost\n2026-01-01 round 3: done"), plain("=1+1"), len(plain("x" * 10**6))
    ('lost 2026-01-01 round 3: done', "'=1+1", 200)
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in str(text)[: 10 * _LONGEST])
    line = " ".join(printable.split())
    return f"'{line}"[:_LONGEST] if line[:1] in tuple("=+-@") else line[:_LONGEST]


class RejectedReplyError(ShoalError):
    """A reply that is not merged; the text says why, by `plain`, since it may quote the reply."""

    def __init__(self, reason: str) -> None:
        super().__init__(plain(reason))


@dataclass(frozen=True, eq=False)
class Offer:
    """The message of the server to a client in a round.

    Args:
        round: number of the round, from 1.
        client: the client's id, by which its random streams are named.
        config: the run's configuration, as TOML.
        models: (K, P) float32, what the client may choose among.
        risks: (K,) float64, the server's estimate of each model's risk.
        directives: what the server asks of each model's clients, by name; (K,) float64 each.
        classes: the names of the classes, by number; none where the data are a named set.
        scale: the standardization of columns, fitted to the server's table; None: the data are no tables.
        ledger: the last charge of the client's ledger that the server has seen: its number and hash.
    """

    round: int
    client: int
    config: str
    models: Tensor
    risks: Tensor
    directives: Mapping[str, Tensor] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    scale: Standardizer | None = None
    ledger: tuple[int, str] = (0, "")
    __repr__ = one_line


@dataclass(frozen=True)
class Refusal:
    """A client's answer that it does not train, and why."""

    reason: str


@settings
class Limits:
    """The limits of what the server takes from a client.

    Args:
        max_examples: the largest number of examples that is believed.
        max_update_norm: the largest L2 norm of an update, in units of parameters; `math.inf`: any.
    """

    max_examples: Positive = 10_000_000
    max_update_norm: Annotated[float, Field(gt=0, strict=True)] = math.inf


def parts_of(algorithm: Algorithm) -> RemoteRounds:
    """The parts of an algorithm on clients and on the server.

    Raises:
        InputError: the algorithm, or how it is set, needs more of clients in a round than one reply.
    """
    names = ", ".join(kind.title for kind in get_args(Algorithms) if hasattr(kind, "remote_rounds"))
    require(
        isinstance(algorithm, RunsRemotely),
        f"'algorithm.name': {type(algorithm).__name__} does not run on several machines, since it has no method "
        f"'remote_rounds'; those that do are {names}",
    )
    return remote_rounds(algorithm)


def check_update(update: ClientUpdate, models: Tensor, limits: Limits, *, counts_best: bool) -> None:
    """Raise `RejectedReplyError` unless ``update`` can be merged, whose ``end`` is float32.

    Args:
        models: (K, P), those of its offer.
        counts_best: whether the algorithm needs `ClientUpdate.best`.
    """
    clusters, examples = len(models), update.examples
    reject_unless(0 <= update.cluster < clusters, f"cluster {update.cluster} is none of the {clusters} offered models")
    reject_unless(
        1 <= examples <= limits.max_examples, f"{examples} examples, which must be in [1, {limits.max_examples}]"
    )
    shape, required = tuple(update.end.shape), tuple(models.shape[1:])
    reject_unless(shape == required, f"a model of shape {shape}, not {required}")
    reject_unless(bool(torch.isfinite(update.end).all()), "the model has numbers that are NaN or infinite")
    norm = float((update.end - models[update.cluster]).double().norm())
    reject_unless(norm <= limits.max_update_norm, f"an update of norm {norm:.4g}, above {limits.max_update_norm:g}")
    if counts_best:
        best = [] if update.best is None else update.best.tolist()
        reject_unless(len(best) == clusters, f"{len(best)} counts of examples for {clusters} models")
        reject_unless(
            min(best) >= 0 and sum(best) == examples,
            f"counts by model {best}, which must be at least 0 and sum to {examples} examples",
        )


def reject_unless(condition: bool, reason: str) -> None:
    """Raise `RejectedReplyError` with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise RejectedReplyError(reason)
