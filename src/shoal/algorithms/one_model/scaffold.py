"""SCAFFOLD: FedAvg with control variates that correct the drift of local training."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import PositiveFloat, settings
from shoal.engine import Aggregate, ClientVectors, Cohort, LinearTerm, LocalSGD, RoundPlan, State, require_plain_sgd


@settings
class Scaffold(Derived):
    """FedAvg with control variates: the local step of client i is ``y <- y - eta_l * (g_i(y) - c_i + c)``.

    After E steps from the shared model x, the client sets ``c_i <- c_i - c + (x - y) / (E * eta_l)``. The server sets
    ``x <- x + eta_g * mean_i(y - x)`` and ``c <- c + |S| / N * mean_i(change of c_i)``, where S is the set of the
    round's clients.

    Args:
        server_learning_rate: the server's learning rate ``eta_g``.

    Raises:
        InputError: local training has momentum, clipping, noise, an optimizer or fewer than E steps.

    Source: Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1, Option II.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> for rounds in (1, 2):
        ...     fedavg = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=rounds)
        ...     scaffold = shoal.simulate(federation, model, shoal.Scaffold(), local, rounds=rounds)
        ...     print(rounds, scaffold.state.models.allclose(fedavg.state.models))
        ...
        1 True
        2 False
    """

    server_learning_rate: PositiveFloat = 1.0
    name: Literal["scaffold"] = "scaffold"
    title: ClassVar[str] = "SCAFFOLD"
    membership_barrier: ClassVar[str] = "keeps a mean over all clients"

    @property
    def inner(self) -> FedAvg:
        return FedAvg(weighting="equal")

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require_plain_sgd(local, "SCAFFOLD")
        require(local.share == 1, f"'share_of_steps' must be 1 with SCAFFOLD (got {local.share:g})")

    def add_tensors(self, state: State, layout: Layout) -> State:
        own = ClientVectors.same(torch.zeros_like(state.models[0]), len(state.assignment))
        return replace(state, server={"scaffold.c": torch.zeros_like(state.models)}, personal={"scaffold": own})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        correction = state.server["scaffold.c"] - state.personal["scaffold"][cohort.clients]
        term = LinearTerm(torch.zeros(len(cohort)), state.models, plan.assignment, correction)
        (training,) = plan.trainings
        return replace(plan, trainings=(replace(training, linear_term=term, keep=lambda update: update),))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        (update,), server = aggregate.kept, state.server["scaffold.c"]
        assert update is not None
        steps = cohort.local.steps_each(cohort.sizes)[:, None]
        change = -server - update / (steps * cohort.local.learning_rate)
        # Batch norm's statistics have no gradient to correct.
        change[:, cohort.layout.trainable :] = 0
        own, eta = state.personal["scaffold"], self.server_learning_rate
        moved = aggregate.models if eta == 1 else state.models + eta * (aggregate.models - state.models)
        return replace(
            state,
            models=moved,
            server={"scaffold.c": server + change.sum(dim=0) / len(own)},
            personal={"scaffold": own.add_rows(cohort.clients, change)},
        )
