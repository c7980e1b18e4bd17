"""Local training only: every client trains a model of its own, from the start or after the last round."""

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
    """In every round that it takes part in, client i trains a model w_i of its own further, on ``f_i(w)`` alone.

    The baseline "local" of Ghosh, Chung, Yin, Ramchandran 2020, arXiv:2006.04088, and of Liu, Hu, Wu, Smith 2022,
    arXiv:2206.07902: what a client reaches without the others.

    All start from FedAvg's first model and draw the same batches as in FedAvg, so with one client it is FedAvg. No
    client sends anything: the server's filter, malicious clients and attacks by the server have nothing to act on, and
    the model of the server stays the initial one. Attacks that are fitted on shadow models of it may therefore
    understate the exposure of the clients' models; ``reference_federations`` retrain these. N models are kept.

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
    """The rounds are those of ``base``, bit for bit; then client i uses what local training makes of its model.

    Its model is the one that ``base`` says it uses, its cluster's or a personal one. Every client trains once more on
    all its examples, with the defences of its cluster and at the learning rate of the round after the last. Nothing is
    sent, so the server's filter has nothing to act on. The epsilon of DP-SGD counts this training too; with its noise
    in sums it is refused. The N models are made when they are asked for and stored in no checkpoint.

    Args:
        base: trains the shared models.
        local: local training of the fine-tuning; left out: as in a round.

    The baseline "FedAvg with fine-tuning" of most comparisons.

    Source: Wang, Mathews, Kiddon, Eichner, Beaufays, Ramage 2019, arXiv:1910.10252; Collins, Hassani, Mokhtari,
    Shakkottai 2022, arXiv:2205.13692 (FedAvg-FT).

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
