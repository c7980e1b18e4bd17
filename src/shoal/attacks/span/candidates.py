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
"""Fewest known non-members for the matched filter."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Candidate records, which may be members.

    Args:
        x: inputs (M, ...).
        known: inputs (Z, ...) of known non-members, for thresholds; None: none.
        stratum, known_stratum: (M,) and (Z,) int64, or (M, S) and (Z, S) with coarse columns first, such as groups,
            then groups with labels. A threshold is for all records with one value of the first column, from known
            non-members in their mix. None: one stratum.
        y, known_y: labels (M,) and (Z,), or targets, for the model's error on each record if the span does not decide
            alone. None: the error is not used.
        client: (M,) int64, the id of the client that each record belongs or would belong to, for the joint attack.
        examples: (M,) int64, the number of that client's examples; None: `Knowledge.examples`.
        row: (M,) int64, the row of the scores to which each record belongs, a client or a cluster; -1: none. None: all
            records are scored in all rows.

    Raises:
        InputError: no records, or columns of other lengths.
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
        """Create candidates of groups (M,) and known non-members; strata are groups, then groups with labels."""
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
        """Whether enough known non-members have labels for a matched filter."""
        return self.y is not None and self.known_y is not None and len(self.known_y) >= _MIN_KNOWN

    @property
    def strata(self) -> tuple[Ints, Ints]:
        """(M, S) and (Z, S), coarse columns first; S is 0 for a single stratum."""
        known = 0 if self.known is None else len(self.known)
        if self.stratum is None or self.known_stratum is None:
            return np.empty((len(self.x), 0), dtype=np.int64), np.empty((known, 0), dtype=np.int64)
        strata, known_strata = (
            part.cpu().numpy().reshape(len(part), -1) for part in (self.stratum, self.known_stratum)
        )
        return strata, known_strata

    def __post_init__(self) -> None:
        require(len(self.x) > 0, "there are no records to attack")
        known, row = 0 if self.known is None else len(self.known), self.row
        fits = row is None or tuple(row.shape) == (len(self.x),)
        require(fits, f"'row' must have shape ({len(self.x)},); got {() if row is None else tuple(row.shape)}")
        for name, count, dims in (
            ("stratum", len(self.x), (1, 2)), ("known_stratum", known, (1, 2)), ("y", len(self.x), (1, 2, 3)),
            ("known_y", known, (1, 2, 3)),
        ):  # fmt: skip
            column: Tensor | None = getattr(self, name)
            fits = column is None or (column.dim() in dims and len(column) == count)
            shape = () if column is None else tuple(column.shape)
            require(fits, f"'{name}' must have shape ({count},) or ({count}, S); got {shape}")


@dataclass(frozen=True, eq=False)
class SpanScores:
    """The scores of N clients or clusters and M records.

    Args:
        score: (N, M) float64, higher for members: minus the residual, reduced by the matched filter if the span does
            not decide alone. With noise it is the filter's score, or without labels the leverage. NaN if the client or
            cluster sent no move, or the record is not of its row.
        threshold: (N, M) float64, NaN like ``score``. If the span is exact it lies between rounding and the residuals
            of non-members; otherwise non-members exceed it at the attack's rate of false alarms.
        exact: (N,) bool, whether some records lie in the span up to rounding, and no known non-member does by chance.
        rank: (N,) int64, the dimensions of the span; 0 without a move.
        known: (N, Z) float64, scores of the known non-members; NaN like ``score``, and without a search.
        layer: the dense layer's name in the network.
        inputs: its number of inputs, the bias included.
        direct: whether its inputs are the same in all rounds, as those of a first layer.
        noisy: whether noise hides the span, so scores are not residuals.
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
