"""The stack: a regression of membership on the scores of several attacks.

The regression is fitted on reference models, which have known members. To attack a reference model, the attacks use the
other reference models.

Source: Wolpert 1992, Neural Networks 5(2):241-259 (stacked generalisation); arXiv:2604.12737 (a stack of seven
membership attacks).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.errors import require
from shoal.core.settings import PositiveFloat, settings
from shoal.metrics.intervals import Bools, Floats

FOLDS = 8
"""The largest number of parts of the reference models; a regression on the other parts scores each part."""


@dataclass(frozen=True, eq=False)
class Regression:
    """A logistic regression of membership on F standardised features.

    Args:
        centre, spread: the mean and the standard deviation of each feature, (F,).
        weights: the weights of the standardised features, (F,).
        bias: the intercept.
        threshold: the largest score that is classified as a non-member.
    """

    centre: Floats
    spread: Floats
    weights: Floats
    bias: float
    threshold: float = 0.0

    @staticmethod
    def fit(features: Floats, member: Bools, inverse_penalty: float) -> "Regression":
        """Fit a regression of ``member`` (M,) on ``features`` (M, F), with balanced class weights.

        Raises:
            InputError: the records include no members, or no non-members.
        """
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second to import

        require(
            bool(member.any() and not member.all()),
            "the records must include both members and non-members (got only one of the two)",
        )
        centre, spread = features.mean(axis=0), features.std(axis=0)
        # The deviation of a constant feature is a rounding error, not always 0.
        spread = np.where(spread > 1e-9 * (1 + abs(centre)), spread, 1.0)
        regression = LogisticRegression(C=inverse_penalty, class_weight="balanced", max_iter=1000)
        regression.fit((features - centre) / spread, member)
        return Regression(centre, spread, np.ravel(regression.coef_), float(np.ravel(regression.intercept_)[0]))

    def score(self, features: Floats) -> Floats:
        """Return the log odds of membership (M,) for features (M, F)."""
        # Summed row by row: a matrix product may round equal rows differently by their position.
        return ((features - self.centre) / self.spread * self.weights).sum(axis=-1) + self.bias


@settings
class Stack:
    """A logistic regression of membership on the scores of F attacks, fitted on R reference models.

    Args:
        inverse_penalty: the inverse strength of the L2 penalty on standardised scores (scikit-learn's C).

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import Stack
        >>> from shoal.metrics import roc_auc
        >>> draw, member, trained = np.random.default_rng(0), np.arange(400) < 200, np.arange(3200).reshape(400, 8) % 2
        >>> references, scores = draw.normal(trained[..., None], 1.0, (400, 8, 2)), draw.normal(size=(400, 2))
        >>> scores[member] += 1.0  # two attacks that are wrong about different records
        >>> stacked, _ = Stack().scores(scores, references, trained == 1)
        >>> [round(roc_auc(of_attack, member), 2) for of_attack in (*scores.T, stacked)]
        [0.72, 0.74, 0.81]
    """

    name: ClassVar[str] = "stack"
    title: ClassVar[str] = "stack of attacks"
    least: ClassVar[int] = 8

    inverse_penalty: PositiveFloat = 1.0

    def scores(self, attacked: Floats, references: Floats, trained: Bools) -> tuple[Floats, Floats]:
        """Return the log odds of membership of M records on the attacked model (M,) and on each reference model (M, R).

        The regression for a reference model is fitted on other reference models.

        Args:
            attacked: the scores of F attacks on the attacked model, (M, F), with NaN if an attack has no score.
            references: the scores of the F attacks on each reference model, (M, R, F).
            trained: whether each reference model was trained on each record, (M, R).
        """
        rows, columns = trained.shape
        centre = np.nanmean(references, axis=(0, 1))
        references = np.where(np.isnan(references), centre, references)

        def fit(models: np.ndarray) -> Regression:
            features = references[:, models].reshape(-1, references.shape[2])
            return Regression.fit(features, trained[:, models].ravel(), self.inverse_penalty)

        cross_fitted, models = np.empty((rows, columns)), np.arange(columns)
        for part in np.array_split(models, min(FOLDS, columns // 2)):
            cross_fitted[:, part] = fit(np.setdiff1d(models, part)).score(references[:, part])
        return fit(models).score(np.where(np.isnan(attacked), centre, attacked)), cross_fitted
