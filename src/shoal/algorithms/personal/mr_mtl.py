"""MR-MTL: personal models that are pulled towards their mean (mean-regularised multi-task learning)."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.personal.local import LocalOnly
from shoal.algorithms.wrapper import Derived
from shoal.core.settings import NonNegativeFloat, settings
from shoal.engine import Aggregate, Cohort, LinearTerm, RoundPlan, State


@settings
class MRMTL(Derived):
    """Client i trains a personal model w_i on ``f_i(w) + strength / 2 * |w - m|^2``, where m is the mean of all w_j.

    The server's only model is m, the mean over all N clients, including clients that are absent from the round. All
    clients have equal weights. With strength 0 the personal models equal those of `LocalOnly` bit for bit. A client
    trains only its personal model, so DP-SGD spends its privacy budget on one model. A filter of updates at the server
    also affects the personal models.

    Args:
        strength: the factor lambda of the penalty (0.1 to 3 in the authors' code); more noise in DP-SGD requires a
            larger value.

    Source: Liu et al. 2022, arXiv:2206.07902; the authors' code (kenziyuliu/private-cross-silo-fl).

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
