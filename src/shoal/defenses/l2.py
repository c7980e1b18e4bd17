"""L2 regularisation as a defence: small weights have small updates."""

from dataclasses import replace
from typing import Annotated, Self

from pydantic import Field

from shoal.core.errors import require
from shoal.core.settings import NonNegativeFloat, settings
from shoal.defenses.defense import TrainingSetup, require_strength
from shoal.engine import ClusterRound, LocalSGD


@settings
class L2:
    """An L2 penalty: adds ``penalty * parameters`` to every gradient.

    Args:
        penalty: coefficient of the L2 penalty on the parameters; the same thing as ``weight_decay`` of local training,
            so only one of them may be given.

    Raises:
        InputError: a penalty that is negative or not finite.

    Example:
        >>> import shoal
        >>> federation = shoal.Federation.from_tensors([([[-1.0], [1.0]], [0, 1])] * 3, test=([[2.0]], [1]))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=20, learning_rate=0.5)
        >>> for defenses in ([], [shoal.L2(0.1)]):
        ...     result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=3, defenses=defenses)
        ...     print(f"{float(result.state.models.norm()):.1f}")
        ...
        3.0
        1.5
    """

    penalty: Annotated[NonNegativeFloat, Field(alias="l2")]

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with the penalty as weight decay.

        Raises:
            InputError: local training has weight decay already.
        """
        decay = setup.first_local().weight_decay
        require(
            decay == 0,
            f"an L2 penalty of {self.penalty:g} and a weight decay of {decay:g} are the same thing; give one",
        )
        return replace(setup, defenses=(*setup.defenses, self))

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training with that weight decay, the same in every round."""
        del at
        return replace(local, weight_decay=self.penalty) if self.penalty else local

    def scaled(self, strength: float) -> Self:
        """With ``strength`` times the penalty."""
        require_strength(strength)
        return replace(self, penalty=strength * self.penalty)
