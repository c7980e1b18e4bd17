"""A matched filter for a record's gradient in an update, for use if noise or too many records hide the span.

An update of a dense layer is ``D = -rate sum_i e_i a_i' + noise``. The other records' contributions are modelled by the
second moments A of inputs and H of errors: without the scored record, D has the covariance ``C = p H x A + nu^2 I``.
Here nu is the standard deviation of the noise, and p matches the length of D. The best linear test for the contribution
of a record with error e and inputs a is

    score(x) = -<e a', C^-1 D> / sqrt(<e a', C^-1 e a'>)

Source: ours, after the matched filter of signal detection. The attack `GradCosine` is the case C = I.
"""

from dataclasses import dataclass, replace

from torch import Tensor

from shoal.attacks.span.row_space import row_spaces

RIDGE = 1e-3
"""The ridge on the covariance, as a fraction of its mean diagonal; few records leave directions without variance."""


@dataclass(frozen=True, eq=False)
class Clutter:
    """The eigenvectors and eigenvalues of the second moments of a layer's d inputs and h errors.

    Args:
        inputs: the eigenvectors of the input moments with positive eigenvalues, as columns, (d, r) float64.
        of_inputs: the positive eigenvalues of the input moments, (r,).
        errors: the eigenvectors of the error moments with positive eigenvalues, as columns, (h, s) float64.
        of_errors: the positive eigenvalues of the error moments, (s,).
    """

    inputs: Tensor
    of_inputs: Tensor
    errors: Tensor
    of_errors: Tensor

    @staticmethod
    def of_records(inputs: Tensor, errors: Tensor) -> "Clutter":
        """Compute the second moments of inputs (Z, d) or (Z, L, d) and errors (Z, h) or (Z, L, h)."""
        of_inputs, directions = _second_moments(inputs)
        return Clutter(directions, of_inputs, directions, of_inputs).with_errors(errors)

    def with_errors(self, errors: Tensor) -> "Clutter":
        """Replace the error moments by the moments of ``errors``."""
        of_errors, directions = _second_moments(errors)
        return replace(self, errors=directions, of_errors=of_errors)

    def scores(self, move: Tensor, deviation: float, inputs: Tensor, errors: Tensor) -> Tensor:
        """Score records (M,) with inputs (M, d) and errors (M, h) by an update (h, d) with noise of deviation nu."""
        found, own = self.evidence(move, deviation, inputs, errors)
        return found / own.clamp(min=1e-300).sqrt()

    def evidence(self, move: Tensor, deviation: float, inputs: Tensor, errors: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``-<e a', C^-1 D>`` and ``<e a', C^-1 e a'>`` of each record, (M,) float64 each.

        For several updates, both values are summed over the updates.
        """
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
