"""Records whose membership a span attack asks, and the scores that it gives them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.formats import one_line
from shoal.data.shards import GroupedExamples
from shoal.metrics.intervals import Bools, Floats, Ints

_MIN_KNOWN = 20
"""Known non-members, at least, from which the matched filter learns."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """Records whose membership is asked.

    Args:
        x: inputs (M, ...).
        known: inputs (Z, ...) of records that surely nobody trained on, for thresholds; None: none.
        stratum, known_stratum: (M,) and (Z,) int64, or (M, S) and (Z, S) with coarse columns first, such as groups, and
            then groups with labels. A threshold is of all records of one value of the first column, and of known
            non-members of their mix. None: all are of one.
        y, known_y: labels (M,) and (Z,), or targets; with them the model's error on each record is used where the span
            does not decide alone. None: it is not.
        client: (M,) int64, the id of the client that each belongs or would belong to, for the joint attack.
        examples: (M,) int64, the number of that client's examples; None: as `Knowledge.examples`.
        row: (M,) int64, the one client or cluster of which each record is asked, by its place in the scores; -1: none.
            None: all are asked of all.

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
        """Records of groups (M,) and known non-members; strata are groups, then groups with labels."""
        if not len(known):
            return Candidates(x, stratum=group[:, None], y=y, client=client, examples=examples)
        known_y, strata = known.y.cpu(), [group[:, None], known.group.cpu()[:, None]]
        if not y.is_floating_point():
            classes = 1 + int(max(y.max(), known_y.max()))
            labels = (y[:, None], known_y[:, None])
            strata = [torch.cat([of, of * classes + label], dim=1) for of, label in zip(strata, labels, strict=True)]
        return Candidates(x, known.x, *strata, y=y, known_y=known_y, client=client, examples=examples)

    @property
    def filters(self) -> bool:
        """Whether a matched filter can learn from known non-members, enough of which have labels."""
        return self.y is not None and self.known_y is not None and len(self.known_y) >= _MIN_KNOWN

    @property
    def strata(self) -> tuple[Ints, Ints]:
        """The strata (M, S) and (Z, S), coarse columns first; S is 0 where all records are of one."""
        known = 0 if self.known is None else len(self.known)
        if self.stratum is None or self.known_stratum is None:
            return np.empty((len(self.x), 0), dtype=np.int64), np.empty((known, 0), dtype=np.int64)
        of_x, of_known = (of.cpu().numpy().reshape(len(of), -1) for of in (self.stratum, self.known_stratum))
        return of_x, of_known

    def __post_init__(self) -> None:
        require(len(self.x) > 0, "there are no records to attack")
        known, row = 0 if self.known is None else len(self.known), self.row
        fits = row is None or tuple(row.shape) == (len(self.x),)
        require(fits, f"'row' must have shape ({len(self.x)},); got {() if row is None else tuple(row.shape)}")
        for name, count in (("stratum", len(self.x)), ("known_stratum", known)):
            column: Tensor | None = getattr(self, name)
            fits = column is None or (column.dim() in (1, 2) and len(column) == count)
            shape = () if column is None else tuple(column.shape)
            require(fits, f"'{name}' must have shape ({count},) or ({count}, S); got {shape}")
        for name, count in (("y", len(self.x)), ("known_y", known)):
            labels: Tensor | None = getattr(self, name)
            require(labels is None or len(labels) == count, f"'{name}' must have {count} labels")


@dataclass(frozen=True, eq=False)
class SpanScores:
    """The scores of N clients or clusters and M records.

    Args:
        score: (N, M) float64, higher for members: minus the residual, where the span does not decide alone as many
            digits smaller as the matched filter says; with noise the filter's score, or without labels the leverage.
            NaN where a client or cluster sent no move, or a record was not asked of it.
        threshold: (N, M) float64, NaN like ``score``: between rounding and the residuals of non-members where the span
            is exact, else what non-members exceed at the attack's rate of false alarms.
        exact: (N,) bool, whether some records lie in the span up to rounding, which no known non-member does by chance.
        rank: (N,) int64, the dimensions of the span; 0 without a move.
        known: (N, Z) float64, scores of the known non-members; NaN like ``score``, and of those that no search was for.
        layer: the dense layer's name in the network.
        inputs: its inputs, with the bias as one of them.
        direct: whether its inputs are the same in all rounds, as those of a first layer are.
        noisy: whether noise hides the span, so that scores are no residuals.
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
