"""Personal models by local training in all rounds, or after the last round."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived, Wrapper
from shoal.core.layout import Layout
from shoal.core.settings import settings
from shoal.engine import (
    Aggregate,
    Algorithm,
    ClientTrainings,
    ClientVectors,
    Cohort,
    DeployedModels,
    LocalSGD,
    LocalTraining,
    PersonalModels,
    RoundPlan,
    State,
    client_trainings,
)


@settings
class LocalOnly(Derived):
    """Every client trains a personal model on its own examples only, the baseline without a federation.

    Clients send nothing, so the server's filter, malicious clients and attacks by the server have no effect. The
    server's model does not change, so attacks that are fitted on shadow models may understate the exposure. Attacks
    with ``reference_federations`` retrain the clients' models instead.

    Source: the baseline "local" of Ghosh et al. 2020, arXiv:2006.04088, and of Liu et al. 2022, arXiv:2206.07902.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> first, last = (shoal.simulate(federation, model, shoal.LocalOnly(), local, rounds=n) for n in (1, 3))
        >>> first.state.models.equal(last.state.models)
        True
        >>> last.summary.overall["train_accuracy.overall"]
        1.0
    """

    name: Literal["local"] = "local"
    title: ClassVar[str] = "Local training only"

    def add_tensors(self, state: State, layout: Layout) -> State:
        return replace(state, personal={"local": ClientVectors.same(state.models[0], len(state.assignment))})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        training = LocalTraining(
            initial_params=state.personal["local"][cohort.clients],
            init_index=torch.arange(len(cohort)),
            keep=lambda update: update,
        )
        return RoundPlan(torch.zeros(len(cohort), dtype=torch.int64), (training,))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        (update,) = aggregate.kept
        assert update is not None
        personal = state.personal["local"].add_rows(cohort.clients, update)
        return replace(state, personal={"local": personal})

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        models = PersonalModels.from_rows(state.personal["local"], cohort.clients)
        return DeployedModels(models, torch.arange(len(cohort)), torch.zeros(len(cohort), dtype=torch.int64))


@settings
class FineTuning(Wrapper):
    """One more local training of each client's model after the last round of ``base``.

    Fine-tuning starts from the model that ``base`` assigns to the client, and uses the defences of the client's
    cluster. Clients send nothing after fine-tuning. The epsilon of DP-SGD covers fine-tuning. Fine-tuning refuses
    DP-SGD with ``noise = "sum"``. Checkpoints do not store the fine-tuned models.

    Args:
        base: the algorithm that trains the shared models.
        local: the settings of fine-tuning; by default the same as in a round.

    Source: Wang et al. 2019, arXiv:1910.10252; Collins et al. 2022, arXiv:2205.13692 (FedAvg-FT).

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.FedAvg(), shoal.FineTuning(shoal.FedAvg())
        >>> fedavg, tuned = (shoal.simulate(federation, model, rule, local, rounds=3) for rule in algorithms)
        >>> tuned.state.models.equal(fedavg.state.models)
        True
        >>> [result.summary.overall["train_accuracy.overall"] for result in (fedavg, tuned)]
        [0.5, 1.0]
    """

    base: Algorithm = FedAvg()
    local: LocalSGD | None = None
    name: Literal["fine-tuning"] = "fine-tuning"
    title: ClassVar[str] = "Fine-tuning"

    def client_trainings(self, local: LocalSGD) -> ClientTrainings:
        base = client_trainings(self.base, local)
        return replace(base, final=(*base.final, self.local or local))

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        deployed = super().deployed_models(state, cohort)
        return replace(deployed, fine_tuning=(*deployed.fine_tuning, self.local))
