"""A matched filter for a record's gradient in a move, if noise or too many records hide the span.

A move of a dense layer is ``D = -rate sum_i e_i a_i' + noise``. Similar records model the other records' part: inputs
with second moments A, errors with second moments H. With the noise's deviation nu, D without the record has covariance
``C = p H x A + nu^2 I``, with p from the length of D. The best linear test for the record's own term, with error e and
inputs a, weighs every element by the inverse of C:

    score(x) = -<e a', C^-1 D> / sqrt(<e a', C^-1 e a'>)

Ours, after the matched filter of signal detection; `GradCosine` has C = I.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from shoal.attacks.span.row_space import row_spaces

RIDGE = 1e-3
"""Share of the mean diagonal that is added to the covariance: moments of few records have directions of 0 variance."""


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
        """Compute the moments of inputs (Z, d) or (Z, L, d) and errors (Z, h) or (Z, L, h)."""
        of_inputs, directions = _second_moments(inputs)
        return Clutter(directions, of_inputs, directions, of_inputs).with_errors(errors)

    def with_errors(self, errors: Tensor) -> "Clutter":
        """Replace the errors, such as by those of another model."""
        of_errors, directions = _second_moments(errors)
        return replace(self, errors=directions, of_errors=of_errors)

    def scores(self, move: Tensor, deviation: float, inputs: Tensor, errors: Tensor) -> Tensor:
        """Score records (M,) with inputs (M, d) and errors (M, h) by a move D (h, d) with noise deviation nu."""
        found, own = self.evidence(move, deviation, inputs, errors)
        return found / own.clamp(min=1e-300).sqrt()

    def evidence(self, move: Tensor, deviation: float, inputs: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``-<e a', C^-1 D>`` and ``<e a', C^-1 e a'>``, (M,) float64 each; both add up over moves."""
        strength = (float(move.square().sum()) - deviation**2 * move.numel()) / float(
            (self.of_inputs.sum() * self.of_errors.sum()).clamp(min=1e-300)
        )
        covariance = max(strength, 0.0) * self.of_errors[:, None] * self.of_inputs
        # Directions without variance among the records have the variance of the noise.
        least = deviation**2 + RIDGE * float(covariance.sum()) / move.numel() + 1e-300
        # Weights, moves and errors are scaled for float32. With weights of 1 outside the eigenvectors, only a
        # correction inside them remains.
        weights = least / (covariance + least) - 1
        length = float(move.abs().max().clamp(min=1e-300))
        scaled = move.double() / length
        filtered = ((self.errors.T @ scaled @ self.inputs) * weights).float()
        whole, of_each = _places(inputs), _places(errors)
        size = of_each.abs().amax(dim=(1, 2), keepdim=True).clamp(min=1e-30)
        of_each, scale = of_each / size, size.flatten().double()
        right, left = whole @ self.inputs.float(), of_each @ self.errors.float()
        found = _sums((of_each @ scaled.float()) * whole) + _sums((left @ filtered) * right)
        # |sum_l e_l a_l'|_C^2, for one place (e^2) C^-1 (a^2).
        squares = of_each.square().sum(dim=2, keepdim=True) * whole.square().sum(dim=2, keepdim=True)
        own = _sums(squares) + _sums((left.square() @ weights.float()) * right.square())
        return -found * scale * (length / least), own * scale**2 / least


def _places(values: Tensor) -> Tensor:
    return values.float().unflatten(0, (-1, 1)) if values.dim() == 2 else values.float()


def _sums(values: Tensor) -> Tensor:
    return values.double().sum(dim=(1, 2))


def _second_moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (r,) and eigenvectors (d, r) of the second moments of rows (Z, d)."""
    rows = values.flatten(0, -2)
    (space,) = row_spaces([rows], [0.0])
    return space.singular.square() / max(1, len(rows)), space.basis
