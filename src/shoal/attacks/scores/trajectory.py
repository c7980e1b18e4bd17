"""The loss-trajectory attack: a record's losses on the models of several rounds, instead of on the last one alone.

Source: Liu, Zhao, Backes, Zhang 2022, CCS, arXiv:2208.14933. There the stages of training are imitated by distilling
the released model, and a neural network reads the losses. Here an attacker has seen the models of these rounds, as a
server or a client has, and a logistic regression reads them.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.attacks.reference_scores import View
from shoal.attacks.scores.stack import Regression
from shoal.core.errors import require
from shoal.core.settings import PositiveFloat, settings
from shoal.metrics.intervals import Bools, Floats


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
        _require_trajectories(trajectories)
        require(
            member.shape == trajectories.shape[:1],
            f"'member' must be (M,) for {len(trajectories)} records; got shape {member.shape}",
        )
        return FittedLossTrajectory(Regression.fit(trajectories, member, self.inverse_penalty))


@dataclass(frozen=True, eq=False)
class FittedLossTrajectory:
    """Scores records by their losses over T rounds.

    Args:
        regression: of membership on the reference records' losses.
        threshold: the largest score of a non-member.
    """

    regression: Regression
    threshold: float = 0.0

    def score(self, trajectories: Floats) -> Floats:
        """The logarithm of the odds of membership (M,) of losses (M, T).

        Raises:
            InputError: losses of another number of rounds, or not finite.
        """
        _require_trajectories(trajectories)
        rounds = len(self.regression.weights)
        require(
            trajectories.shape[1] == rounds,
            f"losses must be of the {rounds} rounds that the attack was fitted on; got {trajectories.shape[1]}",
        )
        return self.regression.score(trajectories)


def _require_trajectories(trajectories: Floats) -> None:
    fits = trajectories.ndim == 2 and trajectories.shape[1] >= 1
    require(fits, f"'trajectories' must be (M, T), records by rounds; got shape {trajectories.shape}")
    require(bool(np.isfinite(trajectories).all()), "'trajectories' must be finite; some losses are not")
