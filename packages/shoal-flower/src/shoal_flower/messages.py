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
"""The default limit of an update's root mean square, far above the updates of any training."""

_MAX_EXAMPLES = 100_000
"""The largest number of examples of a client that sends counts by model; the server's memory grows with the sum."""

LARGEST_TOTAL = 4.0
"""The largest weight of a client's examples in a risk estimate, as a multiple of the cluster's median."""

_TAIL = 30.0
"""Noise exceeds this multiple of its scale in one of 10^13 bins."""

_LONGEST = 200

Stamp = tuple[int, str]
"""The number of a ledger's charges and the hash of the last charge; ``(0, "")`` without charges."""

REFUSED = "the client refuses; its own log says why"
"""The reason of all other refusals; a second text would be an answer without a charge."""

NO_FEATURES = "the client does not have the run's map of features"
"""The reason of a refusal after which the server sends the feature map again."""

NO_FROZEN = "the client's network has other frozen tensors"
"""The reason of a refusal after which the server sends its frozen tensors."""

LEAVES = "the client leaves for good"
"""The reason of every refusal of a client whose ledger is closed."""

FROZEN = "frozen:"
"""The prefix of the hash of frozen tensors in messages."""


def plain(text: object) -> str:
    r"""Shorten untrusted text to 200 printable characters on one line that no spreadsheet reads as a formula.

    >>> plain("lost\n2026-01-01 round 3: done"), plain("=1+1"), len(plain("x" * 10**6))
    ('lost 2026-01-01 round 3: done', "'=1+1", 200)
    """
    printable = "".join(letter if letter.isprintable() else " " for letter in str(text)[: 10 * _LONGEST])
    line = " ".join(printable.split())
    # A second call changes nothing.
    return (line if line[:1] == "'" else cell(line))[:_LONGEST]


class RejectedReplyError(ShoalError):
    """The rejection of a client's reply; the text is made `plain`, because it may quote the reply."""

    def __init__(self, reason: str) -> None:
        super().__init__(plain(reason))


@dataclass(frozen=True, eq=False)
class Offer:
    """The server's message to a client in a round.

    Args:
        round: the number of the round, from 1.
        client: the client's id, which names the client's random streams.
        config: the run's configuration, as TOML.
        models: the offered models, (K, P) float32.
        risks: the server's estimate of each model's risk, (K,) float64.
        directives: the coordinator's directives by name, one value per model, (K,) float64.
        classes: the names of the classes, in the order of their numbers; empty for a named data set.
        scale: the standardization of columns, fitted to the server's table, or ``None`` without tables.
        ledger: the last charge of the client's ledger that the server has seen.
        features: the hash of the feature map, or "" without a feature map.
        frozen: `Model.frozen_hash` of the models, or "" without frozen tensors.
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
    """A refusal with a text for the node's log; the server receives only ``reason``.

    The reason is `REFUSED`, or names a file that the node lacks. The reason must not depend on the node's data.
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
    """The limits on a client's reply.

    Args:
        max_examples: the largest number of examples.
        max_update_norm: the largest L2 norm of an update. None means `LARGEST_MOVE` times the square root of the number
            of parameters.
        max_norm_ratio: the largest norm of an update as a multiple of the round's median norm, or `math.inf` for no
            limit.
    """

    max_examples: Positive = 10_000_000
    max_update_norm: Annotated[float, Field(gt=0, strict=True)] | None = None
    max_norm_ratio: Annotated[float, Field(ge=1, strict=True)] = 10.0

    def norm(self, parameters: int) -> float:
        """Return the largest allowed norm of an update with this number of ``parameters``."""
        return LARGEST_MOVE * math.sqrt(parameters) if self.max_update_norm is None else self.max_update_norm


def parts_of(algorithm: Algorithm) -> RemoteRounds:
    """Return the client's and the server's part of an algorithm.

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
    """Return the norm of an update.

    Args:
        counts_best: whether the algorithm needs `ClientUpdate.best`.

    Raises:
        RejectedReplyError: the update cannot be merged.
    """
    clusters, examples = len(models), update.examples
    most = min(limits.max_examples, _MAX_EXAMPLES) if counts_best else limits.max_examples
    reject_unless(0 <= update.cluster < clusters, f"cluster {update.cluster} is none of the {clusters} offered models")
    reject_unless(1 <= examples <= most, f"the number of examples must be in [1, {most}] (got {examples})")
    shape, required = tuple(update.end.shape), tuple(models.shape[1:])
    reject_unless(shape == required, f"the model must have the shape {required} (got {shape})")
    reject_unless(bool(torch.isfinite(update.end).all()), "the model has numbers that are NaN or infinite")
    norm, largest = float((update.end - models[update.cluster]).double().norm()), limits.norm(models.shape[1])
    reject_unless(norm <= largest, f"the update's norm must be at most {largest:g} (got {norm:.4g})")
    if counts_best:
        best = [] if update.best is None else update.best.tolist()
        reject_unless(len(best) == clusters, f"there must be {clusters} counts by model (got {len(best)})")
        reject_unless(
            min(best) >= 0 and sum(best) == examples,
            f"counts by model must be at least 0 and sum to {examples} examples (got {best})",
        )
    return norm


def long_updates(norms: Sequence[float], clusters: Sequence[int], ratio: float) -> list[tuple[int, float]]:
    """Return the positions of updates whose norm exceeds the limit, each with the limit.

    The limit is ``ratio`` times a median: the larger of the median norm over all updates, and the median norm in the
    update's cluster if the cluster has three or more clients. The median of an even number of norms is the lower middle
    norm.

    >>> long_updates([1.0, 2.0, 3.0, 50.0], [0, 0, 0, 1], ratio=10.0)
    [(3, 20.0)]
    """
    of_all = median_low(norms) if norms else 0.0
    inside = {k: [norm for norm, cluster in zip(norms, clusters, strict=True) if cluster == k] for k in set(clusters)}
    limits = {k: ratio * max(of_all, median_low(some) if len(some) > 2 else 0.0) for k, some in inside.items()}
    limited = [(i, limits[k]) for i, k in enumerate(clusters)]
    # A median of 0 gives no limit.
    return [(i, limit) for i, limit in limited if of_all > 0 and norms[i] > limit]


def check_histograms(counts: Floats, examples: int, limits: Limits, epsilon: float | None) -> None:
    """Check the histograms (2, B) of a client with ``examples`` training examples.

    With noise of ``epsilon``, counts may be negative and totals may differ from ``examples``, up to a Chernoff bound on
    the noise.

    Raises:
        RejectedReplyError: the histograms do not fit the client.
    """
    bins, scale = counts.shape[1], 0.0 if epsilon is None else 1 / epsilon
    slack = scale * (math.sqrt(8 * bins * _TAIL) + 2 * _TAIL)
    members, holdouts = counts.sum(axis=1).tolist()
    reject_unless(bool((counts == counts.round()).all()), "histogram counts must be integers")
    least = float(counts.min())
    reject_unless(least >= -_TAIL * scale, f"histogram counts must not be negative, except for noise (got {least:g})")
    reject_unless(
        abs(members - examples) <= slack, f"the histogram must have {examples} training examples (got {members:g})"
    )
    reject_unless(
        holdouts <= limits.max_examples + slack, f"the histogram has too many hold-out examples (got {holdouts:g})"
    )


def with_bounded_shares(counts: Floats, clusters: Ints) -> Floats:
    """Scale down histograms (N, 2, B) to `LARGEST_TOTAL` times the median total of the client's cluster.

    The bound keeps one client from deciding a model's risk alone.
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
