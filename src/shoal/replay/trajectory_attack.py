"""The loss trajectory of an audit's records: what a client sees who is sent the models in every round."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor
from torch.nn.functional import softplus

from shoal.attacks import LossTrajectory
from shoal.audit.records import CLIENT, AttackScores
from shoal.replay.reference_federations import FederationScores


def trajectory_attack(attacked: FederationScores, references: Sequence[FederationScores]) -> AttackScores | None:
    """A regression of membership on losses over rounds, fitted on the reference federations; None without trajectories.

    Args:
        attacked: of the replayed run.
        references: at least one.
    """
    if not references or not all(len(each.trajectory) == len(attacked.trajectory) > 0 for each in references):
        return None
    losses = np.concatenate([_losses(each.trajectory) for each in references])
    fitted = LossTrajectory().fit(losses, np.concatenate([each.member.numpy() for each in references]))
    scores = fitted.score(_losses(attacked.trajectory))
    return AttackScores(CLIENT, scores, scores - fitted.threshold)


def _losses(trajectory: Tensor) -> np.ndarray:
    """Cross-entropies (2 Q, T) in nats of logit-scaled confidences (T, 2 Q)."""
    return softplus(-trajectory).T.numpy()
