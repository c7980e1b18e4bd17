"""Messages between the server and a client in a round, and the server's checks of a client's update."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms import ALGORITHMS
from shoal.core.errors import InputError, ShoalError, require
from shoal.core.formats import cell, one_line
from shoal.core.settings import Positive, settings
from shoal.data import Standardizer
from shoal.engine import Algorithm, ClientUpdate, RemoteRounds, RunsRemotely, remote_rounds
from shoal.metrics.intervals import Floats, Ints

LARGEST_MOVE = 10.0
"""The root mean square by which a round may move parameters where a run says nothing of it: far above any training."""

_MAX_EXAMPLES = 100_000
"""Examples of a client that sends counts by model, with whose sum the server's memory grows."""

LARGEST_TOTAL = 4.0
"""Times the median of a cluster's clients, which one client's examples count for at most in a risk."""

_TAIL = 30.0
"""Noise of more than so many times its scale comes once in 10^13 bins."""

_LONGEST = 200

Stamp = tuple[int, str]
"""The number of a ledger's charges and the hash of the last one, which the server keeps; ``(0, "")``: none yet."""

REFUSED = "the client refuses; its own log says why"
"""The reason of every other refusal: two of them would be an answer that nobody is charged for."""

NO_FEATURES = "the client does not have the run's map of features"
"""The reason of a client's refusal, after which the server sends the map again."""

NO_FROZEN = "the client's network has other frozen tensors"
"""The reason of a client's refusal, after which the server sends its own."""

LEAVES = "the client leaves for good"
"""The reason of every refusal of a client whose ledger is closed."""

FROZEN = "frozen:"
"""Before the hash of frozen tensors that the server sends, as it sends a map of features."""


def plain(text: object) -> str:
    r"""At most 200 printable characters of a stranger's text, on one line, and nothing that a spreadsheet calculates.

    >>> plain("lost\n2026-01-01 round 3: done"), plain("=1+1"), len(plain("x" * 10**6))
    ('lost 2026-01-01 round 3: done', "'=1+1", 200)
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in str(text)[: 10 * _LONGEST])
    line = " ".join(printable.split())
    # The same when it is called twice.
    return (line if line[:1] == "'" else cell(line))[:_LONGEST]


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
        features: the hash of the map of inputs that was sent before; "": there is none.
        frozen: `Model.frozen_hash`, of the tensors that are in no message; "": there are none.
    """

    round: int
    client: int
    config: str
    models: Tensor
    risks: Tensor
    directives: Mapping[str, Tensor] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    scale: Standardizer | None = None
    ledger: Stamp = (0, "")
    features: str = ""
    frozen: str = ""
    __repr__ = one_line


class NotAllowedError(InputError):
    """What the server asks is refused; the text is for the node's log, and ``reason`` all that the server is told.

    It is `REFUSED`, or says which file the node lacks, which must not depend on the node's data.
    """

    def __init__(self, sentence: str, reason: str = REFUSED) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True)
class Refusal:
    """A client's answer that it does not train, and why."""

    reason: str


@settings
class Limits:
    """The limits of what the server takes from a client.

    Args:
        max_examples: the largest number of examples that is believed.
        max_update_norm: the largest L2 norm of an update, in units of parameters; None: `LARGEST_MOVE` times the root
            of their number.
        max_norm_ratio: the largest multiple of the median norm of a round's updates; `math.inf`: any.
    """

    max_examples: Positive = 10_000_000
    max_update_norm: Annotated[float, Field(gt=0, strict=True)] | None = None
    max_norm_ratio: Annotated[float, Field(ge=1, strict=True)] = 10.0

    def norm(self, parameters: int) -> float:
        """The largest norm of an update of so many parameters."""
        return LARGEST_MOVE * math.sqrt(parameters) if self.max_update_norm is None else self.max_update_norm


def parts_of(algorithm: Algorithm) -> RemoteRounds:
    """The parts of an algorithm on clients and on the server.

    Raises:
        InputError: the algorithm, or how it is set, needs more of clients in a round than one reply.
    """
    names = ", ".join(kind.title for kind in ALGORITHMS.values() if hasattr(kind, "remote_rounds"))
    require(
        isinstance(algorithm, RunsRemotely),
        f"'algorithm.name': {type(algorithm).__name__} does not run on several machines, since it has no method "
        f"'remote_rounds'; those that do are {names}",
    )
    return remote_rounds(algorithm)


def check_update(update: ClientUpdate, models: Tensor, limits: Limits, *, counts_best: bool) -> float:
    """The norm of ``update``, whose ``end`` is float32; raises `RejectedReplyError` where it cannot be merged.

    Args:
        models: (K, P), those of its offer.
        counts_best: whether the algorithm needs `ClientUpdate.best`.
    """
    clusters, examples = len(models), update.examples
    most = min(limits.max_examples, _MAX_EXAMPLES) if counts_best else limits.max_examples
    reject_unless(0 <= update.cluster < clusters, f"cluster {update.cluster} is none of the {clusters} offered models")
    reject_unless(1 <= examples <= most, f"{examples} examples, which must be in [1, {most}]")
    shape, required = tuple(update.end.shape), tuple(models.shape[1:])
    reject_unless(shape == required, f"a model of shape {shape}, not {required}")
    reject_unless(bool(torch.isfinite(update.end).all()), "the model has numbers that are NaN or infinite")
    norm, largest = float((update.end - models[update.cluster]).double().norm()), limits.norm(models.shape[1])
    reject_unless(norm <= largest, f"an update of norm {norm:.4g}, above {largest:g}")
    if counts_best:
        best = [] if update.best is None else update.best.tolist()
        reject_unless(len(best) == clusters, f"{len(best)} counts of examples for {clusters} models")
        reject_unless(
            min(best) >= 0 and sum(best) == examples,
            f"counts by model {best}, which must be at least 0 and sum to {examples} examples",
        )
    return norm


def too_long(norms: Sequence[float], clusters: Sequence[int], ratio: float) -> list[tuple[int, float]]:
    """The updates above ``ratio`` times the median norm, of their cluster or of all, whichever is larger.

    A cluster's own median, of three clients or more, lets a cluster that still learns move further than the others. The
    median is the lower one of two.

    Returns:
        Their positions, and the limit of each.

    >>> too_long([1.0, 2.0, 3.0, 50.0], [0, 0, 0, 1], ratio=10.0)
    [(3, 20.0)]
    """
    of_all = median_low(norms) if norms else 0.0
    inside = {k: [norm for norm, cluster in zip(norms, clusters, strict=True) if cluster == k] for k in set(clusters)}
    limits = {k: ratio * max(of_all, median_low(some) if len(some) > 2 else 0.0) for k, some in inside.items()}
    limited = [(i, limits[k]) for i, k in enumerate(clusters)]
    # Without a median there is no scale: nobody has moved, or there is one client.
    return [(i, limit) for i, limit in limited if of_all > 0 and norms[i] > limit]


def check_histograms(counts: Floats, examples: int, limits: Limits, epsilon: float | None) -> None:
    """Raise `RejectedReplyError` unless histograms (2, B) are of a client with so many training ``examples``.

    With noise a bin may be below 0 by as much as noise of this ``epsilon`` is, but for once in 10^13 bins, and a total
    be off by the noise of B bins (a Chernoff bound of their sum).
    """
    bins, scale = counts.shape[1], 0.0 if epsilon is None else 1 / epsilon
    slack = scale * (math.sqrt(8 * bins * _TAIL) + 2 * _TAIL)
    members, holdouts = counts.sum(axis=1).tolist()
    reject_unless(bool((counts == counts.round()).all()), "histograms whose counts are no integers")
    least = float(counts.min())
    reject_unless(least >= -_TAIL * scale, f"histograms with the count {least:g}")
    reject_unless(abs(members - examples) <= slack, f"a histogram of {members:g} for {examples} training examples")
    reject_unless(holdouts <= limits.max_examples + slack, f"a histogram of {holdouts:g} hold-out examples")


def with_bounded_shares(counts: Floats, clusters: Ints) -> Floats:
    """Histograms (N, 2, B) of which no total is above `LARGEST_TOTAL` times the median of its cluster's clients.

    Above it they are scaled down, so that no client decides alone what its model's risk is.
    """
    bounded = counts.copy()
    for k in set(clusters[clusters >= 0].tolist()):
        inside = clusters == k
        totals = counts[inside].sum(axis=2)
        for kind in (0, 1):
            positive = totals[:, kind][totals[:, kind] > 0].tolist()
            largest = LARGEST_TOTAL * median_low(positive) if positive else math.inf
            scale = np.minimum(1.0, largest / np.maximum(totals[:, kind], 1.0))
            bounded[inside, kind] *= scale[:, None]
    return bounded


def reject_unless(condition: bool, reason: str) -> None:
    """Raise `RejectedReplyError` with ``reason`` unless ``condition`` holds."""
    if not condition:
        raise RejectedReplyError(reason)
