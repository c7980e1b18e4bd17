"""Ditto: a personal model per client, pulled towards the shared model."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Wrapper
from shoal.core.layout import Layout
from shoal.core.settings import NonNegativeFloat, settings
from shoal.engine import (
    Aggregate,
    Algorithm,
    ClientTrainings,
    ClientVectors,
    Cohort,
    DeployedModels,
    LinearTerm,
    LocalSGD,
    LocalTraining,
    PersonalModels,
    RemoteRounds,
    RoundPlan,
    State,
    client_trainings,
    remote_rounds,
)


@settings
class Ditto(Wrapper):
    """In addition to ``base``, client i trains a personal model v_i on ``f_i(v) + strength / 2 * |v - w|^2``.

    Here w is the received shared model. Each client keeps and uses its personal model. The shared models equal those of
    ``base`` bit for bit. The epsilon of DP-SGD covers the training of both the shared and the personal models.

    Args:
        base: the algorithm that trains the shared models.
        strength: the factor lambda of the penalty (0.05 to 2 in the paper); 0 gives purely local training.
        local: the local training of the personal models; by default the same as for the shared models.

    Source: Li et al. 2021, arXiv:2012.04221, Algorithm 1.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.FedAvg(), shoal.Ditto(strength=0.1)
        >>> fedavg, ditto = (shoal.simulate(federation, model, rule, local, rounds=3) for rule in algorithms)
        >>> ditto.state.models.equal(fedavg.state.models)
        True
        >>> [result.summary.overall["train_accuracy.overall"] for result in (fedavg, ditto)]
        [0.5, 1.0]
    """

    base: Algorithm = FedAvg()
    strength: NonNegativeFloat = 0.1
    local: LocalSGD | None = None
    name: Literal["ditto"] = "ditto"
    title: ClassVar[str] = "Ditto"

    def client_trainings(self, local: LocalSGD) -> ClientTrainings:
        base, own = client_trainings(self.base, local), self.local or local
        return ClientTrainings((*base.rounds, own), None if base.first is None else (*base.first, own))

    def add_tensors(self, state: State, layout: Layout) -> State:
        personal = ClientVectors.same(state.models[0], len(state.assignment))
        return replace(state, personal={**state.personal, "ditto": personal})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        everybody = torch.arange(len(cohort))
        # A term of 0 could make the engine compute in another order.
        pull = LinearTerm(torch.full((len(cohort),), self.strength), state.models, plan.assignment)
        training = LocalTraining(
            initial_params=state.personal["ditto"][cohort.clients],
            init_index=everybody,
            keep=lambda update: update,
            linear_term=pull if self.strength else None,
            local=self.local,
        )
        return replace(plan, trainings=(*plan.trainings, training))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        shared = replace(plan, trainings=plan.trainings[:-1])
        after = super().server_update(state, cohort, shared, Aggregate(aggregate.models, aggregate.kept[:-1]))
        update = aggregate.kept[-1]
        assert update is not None
        personal = state.personal["ditto"].add_rows(cohort.clients, update)
        return replace(after, personal={**after.personal, "ditto": personal})

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        models = PersonalModels.from_rows(state.personal["ditto"], cohort.clients)
        return DeployedModels(models, torch.arange(len(cohort)), self.base.deployed_models(state, cohort).assignment)

    def remote_rounds(self) -> RemoteRounds:
        base = remote_rounds(self.base)
        return replace(base, client=replace(self, base=base.client))
