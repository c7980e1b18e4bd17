"""Pooling: after each round every cluster's model is drawn towards the average of all models."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrapper import Wrapper
from shoal.core.settings import Fraction, settings
from shoal.engine import Aggregate, Algorithm, Cohort, RoundPlan, State


@settings
class Pooling(Wrapper):
    """After the round of ``base``: ``theta_k <- (1 - rho_k) * theta_k + rho_k * mean``, with rho_k = share * directive.

    The mean of all models is weighted by the number of clients that trained each in this round, so that every client
    counts once: with rho = 1 and equally weighted clients the models are FedAvg's average. Where nobody trained any
    model, and with a single model, nothing changes. Single records show less in a model that also has what others
    learnt.

    The directive "pooling" of a cluster, in [0, 1], multiplies the share; without it the share is whole, and at 0 the
    model is that of ``base``, bit for bit. The members of a model stay those who trained it: other clusters' records
    that pooling brings to it are not counted as membership.

    Args:
        base: trains the models.
        share: rho, the mean's part in each model, in [0, 1].

    Source: ours; Mansour, Mohri, Ro, Suresh 2020, arXiv:2002.10619, interpolate between a client's model and the global
    one.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithms = [shoal.Pooling(shoal.IFCA(clusters=2), share=share) for share in (0.0, 0.5, 1.0)]
        >>> models = [shoal.simulate(federation, model, rule, local, rounds=3).state.models for rule in algorithms]
        >>> [round(float((first - second).norm()), 2) for first, second in models]
        [5.07, 1.85, 0.0]
    """

    base: Algorithm = IFCA()
    share: Fraction = 0.5
    name: Literal["pooling"] = "pooling"
    title: ClassVar[str] = "Pooling"
    moves_by_average: ClassVar[bool] = False

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The base's update; then each model moves towards the mean."""
        after = super().server_update(state, cohort, plan, aggregate)
        rho = self.share * after.strength("pooling")
        return replace(after, models=pool_models(after.models, rho[:, None], trainers_per_model(after, cohort, plan)))


def pool_models(models: Tensor, rho: Tensor, weights: Tensor) -> Tensor:
    """``(1 - rho) * models + rho * mean``, in float64; where rho is 0 the models as they are, bit for bit.

    Args:
        models: (K, P) float32.
        rho: (K, 1) or (K, P) float64 in [0, 1].
        weights: (K,) float64 of the models in the mean, at least 0; where all are 0, nothing changes.

    >>> models, released = torch.tensor([[0.0], [4.0]]), torch.tensor([[0.0], [0.5]]).double()
    >>> pool_models(models, released, torch.tensor([3.0, 1.0]).double())
    tensor([[0.0000],
            [2.5000]])
    """
    if len(models) == 1 or not bool(weights.any()) or not bool(rho.any()):
        return models
    whole, rho = models.double(), rho.to(models.device)
    mean = ((weights / weights.sum()).to(whole)[:, None] * whole).sum(dim=0)
    return torch.where(rho == 0, models, ((1 - rho) * whole + rho * mean).float())


def trainers_per_model(after: State, cohort: Cohort, plan: RoundPlan) -> Tensor:
    """(K,) float64, the number of clients of ``cohort`` that trained each model of ``after``, the round's last state.

    They have a weight in its aggregation; of models that the server has split or merged since, they are assigned to it.
    """
    clusters = len(after.models)
    moved = [training.weights != 0 for training in plan.trainings if training.weights is not None]
    if not moved:
        return torch.zeros(clusters, dtype=torch.float64)
    if len(moved[0]) != clusters:
        return torch.bincount(after.assignment[cohort.clients], minlength=clusters).double()
    return torch.stack(moved).any(dim=0).sum(dim=1).double()
