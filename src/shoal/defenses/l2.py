"""L2 regularisation as a defence: it keeps weights small, and updates with them."""

import math
from dataclasses import dataclass, replace

from shoal.core.errors import require
from shoal.defenses.defense import TrainingSetup
from shoal.engine import ClusterRound, LocalSGD


@dataclass(frozen=True)
class L2:
    """Adds ``penalty * parameters`` to every gradient: the weight decay of `LocalSGD`.

    Args:
        penalty: at least 0.

    Raises:
        InputError: a penalty outside that range.
    """

    penalty: float

    def __post_init__(self) -> None:
        require(0 <= self.penalty < math.inf, f"'defenses.l2' must be at least 0; got {self.penalty:g}")

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with that weight decay.

        Raises:
            InputError: it has one already.
        """
        decay = setup.local.weight_decay
        require(
            decay == 0,
            f"'defenses.l2' = {self.penalty:g} and 'local.weight_decay' = {decay:g} are the same thing; give one",
        )
        return replace(setup, defenses=(*setup.defenses, self))

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training with that weight decay, the same in every round."""
        del at
        return replace(local, weight_decay=self.penalty)
