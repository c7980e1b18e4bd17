"""The stack: one attacker who reads the scores of several attacks on a record, and the regression that reads them.

It is fitted on reference federations, whose members are known: each is attacked in turn with the others as its
references, so that its records have the scores that the attacked run's have. Source: stacked generalisation, Wolpert
1992, Neural Networks 5(2):241-259; of membership attacks, with seven estimators, arXiv:2604.12737.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.errors import require
from shoal.core.settings import PositiveFloat, settings
from shoal.metrics.intervals import Bools, Floats

FOLDS = 8
"""Parts of the reference models, at most, each of which is scored by a regression that was fitted on the others."""


@dataclass(frozen=True, eq=False)
class Regression:
    """A logistic regression of membership on F standardised features.

    Args:
        centre, spread: (F,) mean and standard deviation of the reference records' features.
        weights: (F,) of the standardised features.
        bias: of the regression.
        threshold: the largest score of a non-member.
    """

    centre: Floats
    spread: Floats
    weights: Floats
    bias: float
    threshold: float = 0.0

    @staticmethod
    def fit(features: Floats, member: Bools, inverse_penalty: float) -> "Regression":
        """The regression of ``member`` (M,) on ``features`` (M, F); members and non-members weigh the same.

        Raises:
            InputError: no members, or no non-members.
        """
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second to import

        require(bool(member.any() and not member.all()), "the records must have members and non-members; got one kind")
        centre, spread = features.mean(axis=0), features.std(axis=0)
        # A feature that is equal for all says nothing; its deviation is a rounding error, not always 0.
        spread = np.where(spread > 1e-9 * (1 + abs(centre)), spread, 1.0)
        regression = LogisticRegression(C=inverse_penalty, class_weight="balanced", max_iter=1000)
        regression.fit((features - centre) / spread, member)
        return Regression(centre, spread, np.ravel(regression.coef_), float(np.ravel(regression.intercept_)[0]))

    def score(self, features: Floats) -> Floats:
        """The logarithm of the odds of membership (M,) of features (M, F)."""
        # Summed row by row: a matrix product may round equal rows differently by their position.
        return ((features - self.centre) / self.spread * self.weights).sum(axis=-1) + self.bias


@settings
class Stack:
    """A logistic regression of membership on the scores of F attacks, fitted on R reference models.

    It reads no member of the attacked run. Gradient boosting on the same scores finds no more
    (docs/results/attacks/table.md).

    Args:
        inverse_penalty: scikit-learn's C, the inverse of the strength of the L2 penalty on standardised scores.

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
        """Scores of M records, in log odds, on the attacked model and on each reference model.

        Args:
            attacked: (M, F) scores of F attacks on the attacked model; NaN where an attack has none.
            references: (M, R, F) the same on each reference model, as if it were attacked.
            trained: (M, R) whether each reference model was trained on each record.

        Returns:
            (M,) by a regression that was fitted on all reference models; (M, R) by one that was fitted without the part
            of the reference models that the scored one is of.
        """
        rows, columns = trained.shape
        centre = np.nanmean(references, axis=(0, 1))
        references = np.where(np.isnan(references), centre, references)

        def fitted(models: np.ndarray) -> Regression:
            features = references[:, models].reshape(-1, references.shape[2])
            return Regression.fit(features, trained[:, models].ravel(), self.inverse_penalty)

        held_out, everyone = np.empty((rows, columns)), np.arange(columns)
        for part in np.array_split(everyone, min(FOLDS, columns // 2)):
            held_out[:, part] = fitted(np.setdiff1d(everyone, part)).score(references[:, part])
        return fitted(everyone).score(np.where(np.isnan(attacked), centre, attacked)), held_out
