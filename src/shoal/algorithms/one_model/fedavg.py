"""FedAvg: one model for all clients.

Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas 2017, arXiv:1602.05629, Algorithm 1.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation
from shoal.engine import (
    Aggregate,
    Cohort,
    Deployed,
    Engine,
    LocalSGD,
    LocalTraining,
    RoundPlan,
    State,
    averaging_weights,
)


@settings
class FedAvg:
    """Every client trains the one model, and the server averages the results.

    Args:
        weighting: of clients: by "examples" (the paper), or "equal".

    Source: McMahan, Moore, Ramage, Hampson, Aguera y Arcas 2017, arXiv:1602.05629, Algorithm 1.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=5, learning_rate=1.0)
        >>> result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=3)
        >>> len(result.models), result.summary.overall["train_accuracy.overall"]
        (1, 0.5)
    """

    weighting: Literal["examples", "equal"] = "examples"
    name: Literal["fedavg"] = "fedavg"
    title: ClassVar[str] = "FedAvg"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Any local training will do."""

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """One random model."""
        del local
        return State.initial(engine.model.init(stream("model", 0))[None], len(federation))

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains it."""
        assignment = torch.zeros(len(cohort), dtype=torch.int64)
        sizes = cohort.sizes if self.weighting == "examples" else torch.ones_like(cohort.sizes)
        training = LocalTraining(state.models, assignment, averaging_weights(assignment, sizes, 1))
        return RoundPlan(assignment, (training,))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The average is the new model."""
        del cohort, plan
        return replace(state, models=aggregate.models)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Everybody uses it."""
        everybody = torch.zeros(len(cohort), dtype=torch.int64)
        return Deployed(state.models, everybody, everybody)
