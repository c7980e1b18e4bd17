"""The loss-trajectory attack, on a record's losses over the models of several rounds.

Source: Liu, Zhao, Backes, Zhang 2022, CCS, arXiv:2208.14933. The paper distils the released model to imitate earlier
stages of training, and classifies the losses with a neural network. Here the server or a client has the models of
several rounds, and classifies the losses with a logistic regression.
"""

from typing import ClassVar

from shoal.attacks.scores.stack import Regression
from shoal.core.settings import PositiveFloat, settings
from shoal.data.preferences import View
from shoal.metrics.intervals import Bools, Floats


@settings
class LossTrajectory:
    """A regression of membership on losses over rounds, fitted on reference models with known members.

    Args:
        inverse_penalty: the inverse strength of the L2 penalty on standardised losses (scikit-learn's C).

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

    def fit(self, trajectories: Floats, member: Bools) -> Regression:
        """Fit the regression with balanced class weights.

        Args:
            trajectories: M rows with a record's losses on a reference model over T rounds, (M, T).
            member: whether each row's reference model was trained on the row's record, (M,).

        Raises:
            InputError: the records include no members, or no non-members.
        """
        return Regression.fit(trajectories, member, self.inverse_penalty)
