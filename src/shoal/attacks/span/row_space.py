"""The row space of a dense layer's updates, and the fraction of a record outside this space.

A gradient of W in ``W a + b`` is ``sum_i e_i a_i'``, with e the gradient of the loss with respect to the layer's
outputs and a the layer's inputs. The rows of any weighted sum of gradients are therefore linear combinations of the
inputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 2.0**-24
"""The rounding error of float32 parameters: half the distance from 1 to the next float32."""

GAP = 8.0
"""A small singular value that is this many times smaller than the preceding value ends the rank."""

_FAR_BELOW = 1e-3


@dataclass(frozen=True, eq=False)
class RowSpace:
    """The row space of a matrix D (R, d), whose elements have noise of standard deviation nu.

    Args:
        basis: the matrix V of orthonormal right singular vectors of D, (d, r) float64.
        singular: the singular values s of D, one per column of V, descending, (r,) float64.
        rows: the number R of rows of D.
        deviation: the standard deviation nu of the noise.

    Example:
        >>> import torch
        >>> from shoal.attacks.span.row_space import row_spaces
        >>> inputs = torch.eye(4)[:2]
        >>> (space,) = row_spaces([torch.ones(3, 2).tril() @ inputs], [1e-9])
        >>> space.rank, space.residuals(torch.eye(4))[0].round(decimals=6).tolist()
        (2, [0.0, 0.0, 1.0, 1.0])
    """

    basis: Tensor
    singular: Tensor
    rows: int
    deviation: float

    @property
    def rank(self) -> int:
        """The number r of singular values above the noise."""
        return len(self.singular)

    @property
    def inputs(self) -> int:
        """The number d of the layer's inputs."""
        return len(self.basis)

    def residuals(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """Return the fraction of each record outside the space, and the fraction due to rounding, (M,) float64 each.

        The fractions are ``|x - V V'x| / |x|`` (1 for x = 0) and ``nu sqrt(d) |a| / |x|``. With coefficients ``a = S^-1
        V'x``, x is a combination of the rows of D, and each row has noise of length ``nu sqrt(d)``. For records of L
        vectors, (M, L, d), the length of a record is the length of the L concatenated vectors.
        """
        vectors, length = _places(records)
        inside = vectors @ self.basis
        outside = (length - inside.square().sum(dim=(1, 2))).clamp(min=0)
        combined = (inside / self.singular).square().sum(dim=(1, 2)) if self.rank else torch.zeros_like(length)
        known, scale = length > 0, length.clamp(min=1e-300)
        # The difference of two squares has half the digits.
        floor = (self.deviation**2 * self.inputs * combined / scale).sqrt() + 1e-8
        return torch.where(known, (outside / scale).sqrt(), 1.0), floor

    def soft_residuals(self, records: Tensor) -> Tensor:
        """Return residuals (M,) in which a direction with singular value s counts with the fraction ``l^2 / (s^2 +
        l^2)``.

        The level l is 4 times the value of `edge`.
        """
        (vectors, length), level = _places(records), (4 * edge(self.rows, self.inputs, self.deviation)) ** 2
        squares = (vectors @ self.basis).square()
        outside = (length - (squares * (self.singular**2 / (self.singular**2 + level))).sum(dim=(1, 2))).clamp(min=0)
        return torch.where(length > 0, (outside / length.clamp(min=1e-300)).sqrt(), 1.0)

    def leverages(self, records: Tensor) -> Tensor:
        """Return ``sum_i w_i (v_i'x)^2 / |x|^2`` of each record, (M,), with ``w = max(0, 1 - edge^2 / s^2)``.

        The weight w is the fraction of a direction's squared length that the noise does not explain.
        """
        vectors, length = _places(records)
        weights = (1 - (edge(self.rows, self.inputs, self.deviation) / self.singular) ** 2).clamp(min=0)
        return ((vectors @ self.basis).square() * weights).sum(dim=(1, 2)) / length.clamp(min=1e-300)


def _places(records: Tensor) -> tuple[Tensor, Tensor]:
    """Return records (M, d) or (M, L, d) as (M, L, d) float64, and their squared lengths (M,)."""
    vectors = records.double().unflatten(0, (-1, 1)) if records.dim() == 2 else records.double()
    return vectors, vectors.square().sum(dim=(1, 2))


def edge(rows: int, inputs: int, deviation: float) -> float:
    """Return ``nu (sqrt(R) + sqrt(d))``, the largest singular value of a large R x d matrix of noise."""
    return deviation * (rows**0.5 + inputs**0.5)


def row_spaces(moves: Sequence[Tensor], deviations: Sequence[float], above: float = 2.0) -> list[RowSpace]:
    """Compute the row space of each of n matrices D (R, d), with noise of standard deviation nu.

    The rank is the number of singular values above ``above * nu (sqrt(R) + sqrt(d))``. The count ends earlier at a
    value below a thousandth of the largest value and more than `GAP` times smaller than the preceding value.
    """
    spaces: list[RowSpace | None] = [None] * len(moves)
    shapes = [tuple(move.shape) for move in moves]
    for shape in dict.fromkeys(shapes):
        same = [i for i, other in enumerate(shapes) if other == shape]
        for begin in range(0, len(same), _TOGETHER):
            part = same[begin : begin + _TOGETHER]
            floors = [above * edge(shape[0], shape[1], deviations[i]) for i in part]
            found = _decomposed(torch.stack([moves[i] for i in part]), floors)
            for i, floor, (vectors, singular) in zip(part, floors, found, strict=True):
                rank = _rank(singular, floor)
                # Vectors of small values are orthogonal only to a few digits.
                basis = torch.linalg.qr(vectors[:, :rank]).Q
                spaces[i] = RowSpace(basis, singular[:rank], shape[0], deviations[i])
    return [space for space in spaces if space is not None]


def join_row_spaces(spaces: Sequence[RowSpace]) -> RowSpace:
    """Return the row space of several stacked matrices with the same columns."""
    if len(spaces) == 1:
        return spaces[0]
    rows, noise = sum(space.rows for space in spaces), max(space.deviation for space in spaces)
    # Directions below the noise of one matrix carry no information, so only the bases are stacked.
    (space,) = row_spaces([torch.cat([(space.basis * space.singular).T for space in spaces])], [noise])
    return RowSpace(space.basis, space.singular, rows, noise)


_TOGETHER = 16
"""The number of matrices per batch, which fit into the processor's caches."""

_LEADING, _SPARE = 64, 16
"""The number of leading eigenvectors to compute, and the number of these that must be below the floor."""


def _decomposed(matrices: Tensor, floors: Sequence[float]) -> list[tuple[Tensor, Tensor]]:
    """Return right singular vectors (d, r) and descending singular values of matrices (n, R, d), down to the floors."""
    matrices = matrices.double()
    wide = matrices.shape[1] < matrices.shape[2]
    gram = matrices @ matrices.mT if wide else matrices.mT @ matrices
    found: list[tuple[Tensor, Tensor] | None] = [None] * len(gram)
    if gram.shape[1] > 2 * _LEADING:
        for i, (singular, vectors) in enumerate(_leading(gram)):
            below = int((singular <= _least(singular, floors[i])).sum())
            found[i] = (singular, vectors) if below >= _SPARE else None
    rest = [i for i, one in enumerate(found) if one is None]
    if rest:
        values, vectors = torch.linalg.eigh(gram[rest])
        for i, *one in zip(rest, values.clamp(min=0).sqrt().flip(-1), vectors.flip(-1), strict=True):
            found[i] = one[0], one[1]
    if not wide:
        return [(vectors, singular) for singular, vectors in filter(None, found)]
    # Columns of the smallest values are of no use, and left out by their rank.
    pairs = zip(matrices, filter(None, found), strict=True)
    return [(matrix.T @ (vectors / singular.clamp(min=1e-150)), singular) for matrix, (singular, vectors) in pairs]


def _leading(gram: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return square roots of the `_LEADING` largest eigenvalues of each matrix (n, m, m), and their vectors (m, r).

    Source: Halko, Martinsson, Tropp, "Finding Structure with Randomness", SIAM Review 2011, algorithm 4.1.
    """
    draws = torch.randn(gram.shape[1], _LEADING, generator=torch.Generator().manual_seed(0), dtype=gram.dtype)
    basis = torch.linalg.qr(gram @ draws).Q
    values, vectors = torch.linalg.eigh(basis.mT @ gram @ basis)
    return list(zip(values.clamp(min=0).sqrt().flip(-1), basis @ vectors.flip(-1), strict=True))


def _least(singular: Tensor, floor: float) -> float:
    """Return the smallest singular value that counts; square roots of eigenvalues have half the digits of float64."""
    return max(floor, 1e-7 * float(singular[0]))


def _rank(singular: Tensor, floor: float) -> int:
    """Return the rank by the rule of `row_spaces`."""
    if not len(singular) or float(singular[0]) == 0:
        return 0
    rank = int((singular > _least(singular, floor)).sum())
    if rank < 2:
        return rank
    ratios = singular[: rank - 1] / singular[1:rank]
    ends = torch.nonzero((ratios > GAP) & (singular[1:rank] < _FAR_BELOW * singular[0])).flatten()
    return int(ends[0]) + 1 if len(ends) else rank
