"""The loss-trajectory attack: a record's losses on the models of several rounds, instead of on the last one alone.

Source: Liu, Zhao, Backes, Zhang 2022, CCS, arXiv:2208.14933. There the stages of training are imitated by distilling
the released model, and a neural network reads the losses. Here an attacker has seen the models of these rounds, as a
server or a client has, and a logistic regression reads them.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.attacks.reference_scores import View
from shoal.core.errors import require
from shoal.core.settings import PositiveFloat, settings

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@settings
class LossTrajectory:
    """Learns from records of reference models, whose membership is known, which losses over rounds members have.

    Args:
        inverse_penalty: scikit-learn's C, the inverse of the strength of the L2 penalty on standardised losses.

    Example:
        >>> import numpy as np
        >>> from shoal.attacks import LossTrajectory
        >>> member = np.arange(40) < 20
        >>> falling, flat = np.array([3.0, 2.0, 0.5]), np.array([2.0, 2.0, 2.0])
        >>> trajectories = np.where(member[:, None], falling, flat) + np.random.default_rng(0).normal(0.0, 0.1, (40, 3))
        >>> fitted = LossTrajectory().fit(trajectories, member)
        >>> fitted.score(np.stack([falling, flat])) > fitted.threshold
        array([ True, False])
    """

    name: ClassVar[str] = "trajectory"
    title: ClassVar[str] = "loss trajectory"
    view: ClassVar[View] = "client"

    inverse_penalty: PositiveFloat = 1.0

    def fit(self, trajectories: Floats, member: Bools) -> "FittedLossTrajectory":
        """Fit the regression; members and non-members weigh the same, however many there are.

        Args:
            trajectories: (M, T) losses of reference models over the rounds of which records are scored later.
            member: (M,) whether each record was trained on.

        Raises:
            InputError: shapes that do not fit, losses that are not finite, or no members or no non-members.
        """
        from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - takes a second to import

        _require_trajectories(trajectories)
        require(
            member.shape == trajectories.shape[:1],
            f"'member' must be (M,) for {len(trajectories)} records; got shape {member.shape}",
        )
        require(bool(member.any() and not member.all()), "the records must have members and non-members; got one kind")
        centre, spread = trajectories.mean(axis=0), trajectories.std(axis=0)
        # A round in which all losses are equal says nothing; their deviation is a rounding error, not always 0.
        spread = np.where(spread > 1e-9 * (1 + abs(centre)), spread, 1.0)
        regression = LogisticRegression(C=self.inverse_penalty, class_weight="balanced", max_iter=1000)
        regression.fit((trajectories - centre) / spread, member)
        weights, bias = np.ravel(regression.coef_), float(np.ravel(regression.intercept_)[0])
        return FittedLossTrajectory(centre, spread, weights, bias)


@dataclass(frozen=True, eq=False)
class FittedLossTrajectory:
    """Scores records by their losses over T rounds.

    Args:
        centre, spread: (T,) mean and standard deviation of the reference records' losses.
        weights: (T,) of the standardised losses.
        bias: of the regression.
        threshold: the largest score of a non-member.
    """

    centre: Floats
    spread: Floats
    weights: Floats
    bias: float
    threshold: float = 0.0

    def score(self, trajectories: Floats) -> Floats:
        """The logarithm of the odds of membership (M,) of losses (M, T).

        Raises:
            InputError: losses of another number of rounds, or not finite.
        """
        _require_trajectories(trajectories)
        rounds = len(self.weights)
        require(
            trajectories.shape[1] == rounds,
            f"losses must be of the {rounds} rounds that the attack was fitted on; got {trajectories.shape[1]}",
        )
        return (trajectories - self.centre) / self.spread @ self.weights + self.bias


def _require_trajectories(trajectories: Floats) -> None:
    fits = trajectories.ndim == 2 and trajectories.shape[1] >= 1
    require(fits, f"'trajectories' must be (M, T), records by rounds; got shape {trajectories.shape}")
    require(bool(np.isfinite(trajectories).all()), "'trajectories' must be finite; some losses are not")
