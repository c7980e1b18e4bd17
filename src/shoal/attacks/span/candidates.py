"""Candidate records of a span attack, and their scores."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.data.shards import GroupedExamples
from shoal.metrics.intervals import Bools, Floats, Ints

_MIN_KNOWN = 20
"""The smallest number of known non-members for the matched filter."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """The candidate records of a membership attack.

    Args:
        x: the inputs of the M candidates, (M, ...).
        known: the inputs of Z known non-members, (Z, ...), which set thresholds; ``None`` means no known non-members.
        stratum, known_stratum: the strata of candidates and of known non-members, (M,) and (Z,) int64; ``None`` means
            one stratum. Shapes (M, S) and (Z, S) give S nested stratifications, coarsest first, such as groups, then
            groups with labels. Candidates with equal values in the first column share a threshold.
        y, known_y: the labels or targets of candidates and of known non-members, (M, ...) and (Z, ...), for the matched
            filter; ``None`` turns the filter off.
        client: the id of each record's possible owner, (M,) int64, for the joint attack.
        examples: the number of examples of each record's client, (M,) int64; ``None`` means `Knowledge.examples`.
        row: the index of the only client or cluster for which each record is scored, (M,) int64; -1 for no client or
            cluster. ``None`` means that all records are scored for all clients or clusters.

    Raises:
        InputError: there are no candidates, or an argument has a wrong shape.
    """

    x: Tensor
    known: Tensor | None = None
    stratum: Tensor | None = None
    known_stratum: Tensor | None = None
    row: Tensor | None = None
    y: Tensor | None = None
    known_y: Tensor | None = None
    client: Tensor | None = None
    examples: Tensor | None = None
    __repr__ = one_line

    @staticmethod
    def of_groups(
        x: Tensor, y: Tensor, group: Tensor, known: GroupedExamples, *, client: Tensor, examples: Tensor
    ) -> "Candidates":
        """Create candidates whose strata are groups, then groups with labels."""
        if not len(known):
            return Candidates(x, stratum=group[:, None], y=y, client=client, examples=examples)
        known_y, strata = known.y.cpu(), [group[:, None], known.group.cpu()[:, None]]
        if not y.is_floating_point():
            classes = 1 + int(max(y.max(), known_y.max()))
            labels = (y[:, None], known_y[:, None])
            strata = [
                torch.cat([groups, groups * classes + label], dim=1)
                for groups, label in zip(strata, labels, strict=True)
            ]
        return Candidates(x, known.x, *strata, y=y, known_y=known_y, client=client, examples=examples)

    @property
    def filters(self) -> bool:
        """Whether labels and enough known non-members exist for the matched filter."""
        return self.y is not None and self.known_y is not None and len(self.known_y) >= _MIN_KNOWN

    @property
    def strata(self) -> tuple[Ints, Ints]:
        """The strata of candidates, (M, S), and of known non-members, (Z, S), coarsest first; S = 0 for one stratum."""
        known = 0 if self.known is None else len(self.known)
        if self.stratum is None or self.known_stratum is None:
            return np.empty((len(self.x), 0), dtype=np.int64), np.empty((known, 0), dtype=np.int64)
        strata, known_strata = (
            part.cpu().numpy().reshape(len(part), -1) for part in (self.stratum, self.known_stratum)
        )
        return strata, known_strata

    def __post_init__(self) -> None:
        require(len(self.x) > 0, "'x' must hold at least one record (got none)")
        known, row = 0 if self.known is None else len(self.known), self.row
        fits = row is None or tuple(row.shape) == (len(self.x),)
        require(fits, f"'row' must have shape ({len(self.x)},) (got {() if row is None else tuple(row.shape)})")
        for name, count, dims in (
            ("stratum", len(self.x), (1, 2)), ("known_stratum", known, (1, 2)), ("y", len(self.x), (1, 2, 3)),
            ("known_y", known, (1, 2, 3)),
        ):  # fmt: skip
            column: Tensor | None = getattr(self, name)
            fits = column is None or (column.dim() in dims and len(column) == count)
            shape = () if column is None else tuple(column.shape)
            require(fits, f"'{name}' must have shape ({count},) or ({count}, S) (got {shape})")


@dataclass(frozen=True, eq=False)
class SpanScores:
    """The scores of M records for N clients or clusters.

    Args:
        score: the scores, (N, M) float64, higher for members. If ``exact``, a score is minus the residual; otherwise
            the residual and the matched filter are combined. With noise, a score is the matched filter's score, or the
            leverage if records have no labels. A score is NaN if the client or cluster sent no update, or if
            `Candidates.row` excludes the record.
        threshold: the thresholds, (N, M) float64, NaN where ``score`` is NaN. If ``exact``, the threshold is between
            the rounding error and the residuals of non-members; otherwise non-members exceed the threshold at the
            attack's false alarm rate.
        exact: whether some records lie in the span up to rounding, and no known non-member lies in the span by chance,
            (N,) bool.
        rank: the dimension of the span, (N,) int64; 0 without an update.
        known: the scores of the known non-members, (N, Z) float64, with NaN if a non-member was not scored.
        layer: the dense layer's name in the network.
        inputs: the number of the layer's inputs, including the bias.
        direct: whether the layer's inputs are the same in all rounds, as for a first layer.
        noisy: whether noise hides the span, so that scores are not residuals.
    """

    score: Floats
    threshold: Floats
    exact: Bools
    rank: Ints
    known: Floats
    layer: str
    inputs: int
    direct: bool
    noisy: bool
    __repr__ = one_line
