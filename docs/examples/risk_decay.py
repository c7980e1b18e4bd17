"""A defence: weight decay that grows with the measured risk of a cluster's model."""

from dataclasses import replace

from shoal.core.settings import NonNegativeFloat, settings
from shoal.defenses import TrainingSetup
from shoal.engine import ClusterRound, LocalSGD


@settings
class RiskDecay:
    """Local training of cluster k in a round decays weights by ``gain * max(0, risk_k - 0.5)`` more.

    Args:
        gain: 0 changes nothing.
    """

    gain: NonNegativeFloat = 1.0

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with this defence."""
        return replace(setup, defenses=(*setup.defenses, self))

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training of that cluster in that round."""
        return replace(local, weight_decay=local.weight_decay + self.gain * max(0.0, at.risk - 0.5))
