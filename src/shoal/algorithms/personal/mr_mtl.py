"""MR-MTL: mean-regularised multi-task learning, a model of each client that is pulled to the mean of all of them."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.personal.local import LocalOnly
from shoal.algorithms.wrapper import Derived
from shoal.core.settings import NonNegativeFloat, settings
from shoal.engine import Aggregate, Cohort, LinearTerm, RoundPlan, State


@settings
class MRMTL(Derived):
    """Client i trains a model w_i of its own on ``f_i(w) + strength / 2 * |w - m|^2``, where m is the mean of all w_i.

    m is that before the round, and the server's only model. A client starts from its own w_i and sends what it became;
    ``m <- m + 1 / N * sum of the cohort's updates``, so m stays the mean of all N clients' models, those that sit out
    included. All start from one initial model, and every client counts the same. With strength 0 the clients' models
    are those of `LocalOnly`, bit for bit. A client trains once in a round, unlike in Ditto, so that DP-SGD spends its
    budget on one model. Where the server has a filter, a client's model is what the filter let pass of its update.

    Args:
        strength: the pull lambda (the authors' code: 0.1 to 3); best stronger, the more noise DP-SGD adds.

    Source: Liu, Hu, Wu, Smith 2022, arXiv:2206.07902, mean-regularized multi-task learning; the update of the mean
    is that of the authors' code (kenziyuliu/private-cross-silo-fl), with equal clients.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = shoal.LocalOnly(), shoal.MRMTL(strength=0.0), shoal.MRMTL(strength=0.5)
        >>> losses = [shoal.simulate(federation, model, rule, local, rounds=2).clients["loss"] for rule in algorithms]
        >>> losses[1].equals(losses[0]), bool((losses[2] > losses[0]).all())
        (True, True)
    """

    strength: NonNegativeFloat = 1.0
    name: Literal["mr-mtl"] = "mr-mtl"
    title: ClassVar[str] = "MR-MTL"
    membership_barrier: ClassVar[str] = "keeps a mean over all clients"

    @property
    def inner(self) -> LocalOnly:
        return LocalOnly()

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = super().plan(state, cohort)
        weights = torch.full((1, len(cohort)), 1 / len(state.assignment), dtype=torch.float64)
        # A term of 0 could make the engine compute in another order.
        pull = LinearTerm(torch.full((len(cohort),), self.strength), state.models, plan.assignment)
        (training,) = plan.trainings
        return replace(
            plan, trainings=(replace(training, weights=weights, linear_term=pull if self.strength else None),)
        )

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        (update,) = aggregate.kept
        assert update is not None
        # Not `aggregate.models`: those move by what clients sent minus the mean, not minus what they started from.
        moved = state.models.double() + update.double().sum(dim=0) / len(state.assignment)
        return replace(super().server_update(state, cohort, plan, aggregate), models=moved.to(state.models))
