"""FedAvg: one model for all clients."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation
from shoal.engine import (
    Aggregate,
    Cohort,
    DeployedModels,
    Engine,
    LocalSGD,
    LocalTraining,
    RemoteRounds,
    RoundPlan,
    State,
    averaging_weights,
)


@settings
class FedAvg:
    """Every client trains one shared model, and the server averages the results: ``sum_i n_i w_i / sum_i n_i``.

    ``w_i`` is the result of client i's local training, and ``n_i`` is the client's number of examples. With `DPSGD`,
    the epsilon covers everything that a client sends. FedAvg is inaccurate for clients whose data differ from the
    average.

    Args:
        weighting: the clients' weights in the average: their numbers of "examples" (the paper), or "equal".

    Source: McMahan et al. 2017, arXiv:1602.05629, Algorithm 1.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=3)
        >>> len(result.models), result.summary.overall["train_accuracy.overall"]
        (1, 0.5)
    """

    weighting: Literal["examples", "equal"] = "examples"
    name: Literal["fedavg"] = "fedavg"
    title: ClassVar[str] = "FedAvg"
    trains_clusters_alone: ClassVar[bool] = True

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Accept any local training."""

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        return State.initial(engine.model.init(stream("model", 0))[None], len(federation))

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        assignment = torch.zeros(len(cohort), dtype=torch.int64)
        sizes = cohort.sizes if self.weighting == "examples" else torch.ones_like(cohort.sizes)
        training = LocalTraining(state.models, assignment, averaging_weights(assignment, sizes, 1))
        return RoundPlan(assignment, (training,))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        return replace(state, models=aggregate.models)

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        everybody = torch.zeros(len(cohort), dtype=torch.int64)
        return DeployedModels(state.models, everybody, everybody)

    def remote_rounds(self) -> RemoteRounds:
        return RemoteRounds(self, self)
