"""An algorithm and the test of its laws: `pytest half_steps.py`."""

from dataclasses import replace

from shoal.algorithms import Derived
from shoal.core.settings import Fraction, settings
from shoal.engine import Aggregate, Cohort, RoundPlan, State
from shoal.testing import check_algorithm


@settings
class HalfSteps(Derived):
    """FedAvg whose model moves a part of the way to the average, ``part``."""

    part: Fraction = 0.5

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """Move the model."""
        return replace(state, models=state.models.lerp(aggregate.models, self.part))


def test_half_steps_keep_the_laws() -> None:
    """Runs a few rounds on six clients."""
    check_algorithm(HalfSteps())
