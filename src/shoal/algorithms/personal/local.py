"""Local training only: every client trains a model of its own, and nothing is sent."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.wrapper import Derived
from shoal.core.layout import Layout
from shoal.core.settings import settings
from shoal.engine import Aggregate, ClientVectors, Cohort, Deployed, LocalTraining, PersonalModels, RoundPlan, State


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

    def begun(self, state: State, layout: Layout) -> State:
        """FedAvg's random model, and the same one for each client."""
        return replace(state, personal={"local": ClientVectors.same(state.models[0], len(state.assignment))})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody goes on with its own model, and keeps the outcome to itself."""
        training = LocalTraining(
            initial_params=state.personal["local"][cohort.clients],
            init_index=torch.arange(len(cohort)),
            keep=lambda update: update,
        )
        return RoundPlan(torch.zeros(len(cohort), dtype=torch.int64), (training,))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The clients' own models move, and nothing else."""
        (update,) = aggregate.kept
        assert update is not None
        personal = state.personal["local"].moved(cohort.clients, update)
        return replace(state, personal={"local": personal})

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Everybody uses its own model."""
        models = PersonalModels.from_rows(state.personal["local"], cohort.clients)
        return Deployed(models, torch.arange(len(cohort)), torch.zeros(len(cohort), dtype=torch.int64))
