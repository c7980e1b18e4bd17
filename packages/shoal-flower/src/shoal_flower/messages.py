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
"""The default limit of the root mean square of an update, far above any training."""

_MAX_EXAMPLES = 100_000
"""Largest number of examples of a client that sends counts by model; the server's memory grows with their sum."""

LARGEST_TOTAL = 4.0
"""Largest weight of a client's examples in a risk, in multiples of the median of its cluster."""

_TAIL = 30.0
"""Multiple of its scale that noise exceeds once in 10^13 bins."""

_LONGEST = 200

Stamp = tuple[int, str]
"""The number of a ledger's charges and the hash of the last one; ``(0, "")``: none yet."""

REFUSED = "the client refuses; its own log says why"
"""The reason of every other refusal: a second text would be an answer without a charge."""

NO_FEATURES = "the client does not have the run's map of features"
"""The reason of a refusal after which the server sends the map again."""

NO_FROZEN = "the client's network has other frozen tensors"
"""The reason of a refusal after which the server sends its own."""

LEAVES = "the client leaves for good"
"""The reason of every refusal of a client whose ledger is closed."""

FROZEN = "frozen:"
"""The prefix of the hash of frozen tensors in messages."""


def plain(text: object) -> str:
    r"""At most 200 printable characters of a stranger's text, on one line, and not a spreadsheet's formula.

    >>> plain("lost\n2026-01-01 round 3: done"), plain("=1+1"), len(plain("x" * 10**6))
    ('lost 2026-01-01 round 3: done', "'=1+1", 200)
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in str(text)[: 10 * _LONGEST])
    line = " ".join(printable.split())
    # A second call changes nothing.
    return (line if line[:1] == "'" else cell(line))[:_LONGEST]


class RejectedReplyError(ShoalError):
    """A reply that is not merged; its text is made `plain`, since it may quote the reply."""

    def __init__(self, reason: str) -> None:
        super().__init__(plain(reason))


@dataclass(frozen=True, eq=False)
class Offer:
    """The message of the server to a client in a round.

    Args:
        round: number of the round, from 1.
        client: the client's id, which names its random streams.
        config: the run's configuration, as TOML.
        models: (K, P) float32, the models to choose among.
        risks: (K,) float64, the server's estimate of each model's risk.
        directives: (K,) float64 each by name, the server's requests to each model's clients.
        classes: the names of the classes, by number; empty for a named set.
        scale: the standardization of columns, fitted to the server's table; None: no tables.
        ledger: the last charge of the client's ledger that the server has seen.
        features: the hash of the map of inputs; "": none.
        frozen: `Model.frozen_hash` of the tensors that no message has; "": none.
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
    """A refusal with a text for the node's log; the server receives ``reason`` only.

    It is `REFUSED`, or names a file that the node lacks; it must not depend on the node's data.
    """

    def __init__(self, sentence: str, reason: str = REFUSED) -> None:
        super().__init__(sentence)
        self.reason = reason


@dataclass(frozen=True)
class Refusal:
    """A client's refusal to answer, with its reason."""

    reason: str


@settings
class Limits:
    """The limits of a client's reply.

    Args:
        max_examples: largest number of examples.
        max_update_norm: largest L2 norm of an update, in units of parameters; None: `LARGEST_MOVE` times the root of
            their number.
        max_norm_ratio: largest multiple of the median norm of a round's updates; `math.inf`: any.
    """

    max_examples: Positive = 10_000_000
    max_update_norm: Annotated[float, Field(gt=0, strict=True)] | None = None
    max_norm_ratio: Annotated[float, Field(ge=1, strict=True)] = 10.0

    def norm(self, parameters: int) -> float:
        """The largest norm of an update of this many ``parameters``."""
        return LARGEST_MOVE * math.sqrt(parameters) if self.max_update_norm is None else self.max_update_norm


def parts_of(algorithm: Algorithm) -> RemoteRounds:
    """The parts of an algorithm on clients and on the server.

    Raises:
        InputError: the algorithm needs more than one reply per client and round.
    """
    names = ", ".join(kind.title for kind in ALGORITHMS.values() if hasattr(kind, "remote_rounds"))
    require(
        isinstance(algorithm, RunsRemotely),
        f"'algorithm.name': {type(algorithm).__name__} does not run on several machines; use one of {names}",
    )
    return remote_rounds(algorithm)


def check_update(update: ClientUpdate, models: Tensor, limits: Limits, *, counts_best: bool) -> float:
    """The norm of ``update`` to an offer of ``models`` (K, P); raises `RejectedReplyError` if it cannot be merged.

    ``counts_best``: whether the algorithm needs `ClientUpdate.best`.
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


def long_updates(norms: Sequence[float], clusters: Sequence[int], ratio: float) -> list[tuple[int, float]]:
    """The positions of updates above ``ratio`` times the median norm of their cluster or of all, and their limits.

    The larger median counts, so that a cluster of three or more clients that still learns may move further. The median
    is the lower one of two.

    >>> long_updates([1.0, 2.0, 3.0, 50.0], [0, 0, 0, 1], ratio=10.0)
    [(3, 20.0)]
    """
    of_all = median_low(norms) if norms else 0.0
    inside = {k: [norm for norm, cluster in zip(norms, clusters, strict=True) if cluster == k] for k in set(clusters)}
    limits = {k: ratio * max(of_all, median_low(some) if len(some) > 2 else 0.0) for k, some in inside.items()}
    limited = [(i, limits[k]) for i, k in enumerate(clusters)]
    # A median of 0 gives no scale: nobody has moved.
    return [(i, limit) for i, limit in limited if of_all > 0 and norms[i] > limit]


def check_histograms(counts: Floats, examples: int, limits: Limits, epsilon: float | None) -> None:
    """Raise `RejectedReplyError` unless histograms (2, B) fit a client with this many training ``examples``.

    With noise of ``epsilon``, a bin may be negative by the tail of the noise, and a total be off by the noise of B bins
    (a Chernoff bound of their sum).
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
    """Histograms (N, 2, B), scaled down to `LARGEST_TOTAL` times the median total of their cluster's clients.

    So one client cannot decide its model's risk alone.
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
