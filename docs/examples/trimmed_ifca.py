"""An algorithm: IFCA whose server trims the updates of each cluster before it averages them."""

from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import Field

from shoal import IFCA, Federation, LocalSGD, Stream
from shoal.core.settings import Positive, settings
from shoal.engine import Aggregate, Cohort, DeployedModels, Engine, RoundPlan, State


@settings
class TrimmedIFCA:
    """In each coordinate the server leaves out the ``floor(trim * n)`` largest and smallest of a cluster's n updates.

    The trimmed mean is of Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498.

    Args:
        clusters: K.
        trim: the share that is left out at each end; 0 is IFCA.
    """

    clusters: Positive = 2
    trim: Annotated[float, Field(ge=0, lt=0.5)] = 0.2
    title: ClassVar[str] = "Trimmed IFCA"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Any local training will do."""

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """K random models."""
        return IFCA(self.clusters).init(engine, federation, local, stream)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Clients choose as in IFCA, and the server keeps every update whole."""
        plan = IFCA(self.clusters).plan(state, cohort)
        return replace(plan, trainings=(replace(plan.trainings[0], keep=lambda updates: updates),))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """Each model moves by the trimmed mean of its clients' updates; a model without clients stays."""
        (updates,), models = aggregate.kept, state.models.clone()
        assert updates is not None, "plan keeps them"
        for cluster in plan.assignment.unique():
            ordered = updates[plan.assignment == cluster].sort(dim=0).values
            cut = int(self.trim * len(ordered))
            models[cluster] += ordered[cut : len(ordered) - cut].mean(dim=0)
        return replace(state, models=models)

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        """Each client uses the model with the lowest loss."""
        return IFCA(self.clusters).deployed_models(state, cohort)
