"""Prediction of a cluster's risk before anything is trained, from its number of examples."""

from shoal.core.errors import require
from shoal.core.settings import PositiveFloat, settings


@settings
class RiskPrediction:
    """Advantage of the strongest attack, ``2 A - 1 = factor * n ** -exponent`` with n training examples of a class.

    A power law of this kind is known for centralised training; its two numbers depend on network, data and training,
    and must be measured (`docs/audit.md`: 1.09 and 0.28 by RMIA, a small network on Fashion-MNIST).

    Args:
        factor: the advantage with one example of each class.
        exponent: of the number of examples of a class; above 0.

    Example:
        >>> import shoal
        >>> [round(shoal.RiskPrediction().risk(examples), 2) for examples in (1, 10, 100, 1000)]
        [1.0, 0.79, 0.65, 0.58]
    """

    factor: PositiveFloat = 1.09
    exponent: PositiveFloat = 0.28

    def risk(self, examples_per_class: float) -> float:
        """Balanced accuracy A in [0.5, 1].

        >>> round(RiskPrediction().risk(25), 3)
        0.721
        """
        return 0.5 + min(1.0, self.factor * max(examples_per_class, 1.0) ** -self.exponent) / 2

    def examples_per_class(self, risk: float) -> float:
        """The fewest examples of each class with a predicted risk of at most ``risk``, above 0.5; 0 where any will do.

        Times the number of classes it is what an algorithm's least number of examples should be (`CFL.min_examples`).

        Raises:
            InputError: a risk that no number of examples reaches.

        >>> round(RiskPrediction().examples_per_class(0.721)), RiskPrediction().examples_per_class(1.0)
        (25, 0.0)
        """
        require(0.5 < risk <= 1, f"'risk' must be above 0.5 and at most 1; got {risk:g}")
        if risk >= self.risk(1):
            return 0.0
        return (self.factor / (2 * risk - 1)) ** (1 / self.exponent)
