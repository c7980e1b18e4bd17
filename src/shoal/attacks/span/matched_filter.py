"""A matched filter: how much of a record's own gradient is in a move, where noise or too many records hide the span.

A move of a dense layer is ``D = -rate sum_i e_i a_i' + noise``. Records of the same kind say what the other records'
part looks like: inputs with second moments A, errors with second moments H. With the noise's deviation nu, D
without the record has covariance ``p H x A + nu^2 I``, where p follows from the length of D. So the best linear test
for the record's own term, of known error e and inputs a, weighs every element by that covariance's inverse:

    score(x) = -<e a', C^-1 D> / sqrt(<e a', C^-1 e a'>)

Ours, after the matched filter of signal detection; `GradCosine` is it with C = I.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from shoal.attacks.span.row_space import row_spaces

RIDGE = 1e-3
"""Added to the covariance, in means of its diagonal: moments of few records have directions of no variance."""


@dataclass(frozen=True, eq=False)
class Clutter:
    """Eigenvectors and eigenvalues of the second moments of a layer's inputs (d) and errors (h).

    Args:
        inputs, of_inputs: (d, r) float64, the eigenvectors of eigenvalues above 0 as columns, and (r,).
        errors, of_errors: (h, s) and (s,).
    """

    inputs: Tensor
    of_inputs: Tensor
    errors: Tensor
    of_errors: Tensor

    @staticmethod
    def of_records(inputs: Tensor, errors: Tensor) -> "Clutter":
        """Those of records' inputs (Z, d) or (Z, L, d) and errors (Z, h) or (Z, L, h)."""
        of_inputs, directions = _second_moments(inputs)
        return Clutter(directions, of_inputs, directions, of_inputs).with_errors(errors)

    def with_errors(self, errors: Tensor) -> "Clutter":
        """Those of the same inputs and of other errors, such as of another model."""
        of_errors, directions = _second_moments(errors)
        return replace(self, errors=directions, of_errors=of_errors)

    def scores(self, move: Tensor, deviation: float, inputs: Tensor, errors: Tensor) -> Tensor:
        """The scores (M,) of records with these inputs (M, d) and errors (M, h) by a move D (h, d), the noise's nu."""
        found, own = self.evidence(move, deviation, inputs, errors)
        return found / own.clamp(min=1e-300).sqrt()

    def evidence(self, move: Tensor, deviation: float, inputs: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """``-<e a', C^-1 D>`` and ``<e a', C^-1 e a'>`` of the same, (M,) float64 each; both add up over moves."""
        strength = (float(move.square().sum()) - deviation**2 * move.numel()) / float(
            (self.of_inputs.sum() * self.of_errors.sum()).clamp(min=1e-300)
        )
        covariance = max(strength, 0.0) * self.of_errors[:, None] * self.of_inputs
        # What has no variance among the records has that of the noise.
        least = deviation**2 + RIDGE * float(covariance.sum()) / move.numel() + 1e-300
        # Weights, moves and errors are brought to a size that float32 holds, in which records are scored. With weights
        # of 1 outside of the eigenvectors, what remains is a correction inside of them.
        weights = least / (covariance + least) - 1
        length = float(move.abs().max().clamp(min=1e-300))
        moved = move.double() / length
        filtered = ((self.errors.T @ moved @ self.inputs) * weights).float()
        whole, of_each = _places(inputs), _places(errors)
        size = of_each.abs().amax(dim=(1, 2), keepdim=True).clamp(min=1e-30)
        of_each, scale = of_each / size, size.flatten().double()
        right, left = whole @ self.inputs.float(), of_each @ self.errors.float()
        found = _sums((of_each @ moved.float()) * whole) + _sums((left @ filtered) * right)
        # |sum_l e_l a_l'|_C^2, for one place (e^2) C^-1 (a^2).
        squares = of_each.square().sum(dim=2, keepdim=True) * whole.square().sum(dim=2, keepdim=True)
        own = _sums(squares) + _sums((left.square() @ weights.float()) * right.square())
        return -found * scale * (length / least), own * scale**2 / least


def _places(values: Tensor) -> Tensor:
    return values.float().unflatten(0, (-1, 1)) if values.dim() == 2 else values.float()


def _sums(values: Tensor) -> Tensor:
    return values.double().sum(dim=(1, 2))


def _second_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues (r,) and eigenvectors (d, r) of the second moments of rows (Z, d)."""
    rows = values.flatten(0, -2)
    (space,) = row_spaces([rows], [0.0])
    return space.singular.square() / max(1, len(rows)), space.basis
