"""An algorithm around any other: models move only a part of the way to their averages; it runs on several machines."""

from dataclasses import replace
from typing import ClassVar

from shoal import IFCA
from shoal.algorithms import Wrapper
from shoal.core.settings import Fraction, settings
from shoal.engine import Aggregate, Algorithm, Cohort, RemoteRounds, RoundPlan, State, remote_rounds


@settings
class Damped(Wrapper):
    """After the round of ``base``: ``theta_k <- theta_k + share * (average_k - theta_k)``.

    Args:
        base: trains the models.
        share: 1 is the base.
    """

    base: Algorithm = IFCA()
    share: Fraction = 0.5
    title: ClassVar[str] = "Damped averages"
    moves_by_average: ClassVar[bool] = False

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """A part of the base's update."""
        after = super().server_update(state, cohort, plan, aggregate)
        return replace(after, models=state.models + self.share * (after.models - state.models))

    def remote_rounds(self) -> RemoteRounds:
        """The server damps; clients run the base."""
        base = remote_rounds(self.base)
        return replace(base, server=replace(self, base=base.server))
