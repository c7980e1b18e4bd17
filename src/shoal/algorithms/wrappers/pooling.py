"""Pooling: after each round, every cluster's model moves towards the mean of all models."""

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
    """A wrapper that moves models towards their mean after each round: ``theta_k <- (1 - rho_k) * theta_k + rho_k *
    mean``.

    The mean weights each model by the number of clients that trained it in the round. Pooling reduces a single record's
    influence on its cluster's model. The members of a model are only the clients that trained the model.

    ``rho_k`` is ``share``. A coordinator's directive "pooling" in [0, 1] multiplies ``rho_k``. With ``rho_k`` = 0 the
    model equals that of ``base`` bit for bit.

    Args:
        base: the algorithm that trains the models.
        share: the weight rho of the mean in each model.

    Source: related to Mansour et al. 2020, arXiv:2002.10619, who interpolate between a client's and the global model.

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
        after = super().server_update(state, cohort, plan, aggregate)
        rho = self.share * after.strength("pooling")
        return replace(after, models=pool_models(after.models, rho[:, None], trainers_per_model(after, cohort, plan)))


def pool_models(models: Tensor, rho: Tensor, weights: Tensor) -> Tensor:
    """Compute ``(1 - rho) * models + rho * mean`` in float64; models with rho = 0 do not change.

    Args:
        models: the models, (K, P) float32.
        rho: the weight of the mean per model, (K, 1), or per parameter, (K, P); float64 in [0, 1].
        weights: the weights of the models in the mean, at least 0, (K,) float64. If all weights are 0, the models do
            not change.

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
    """Count the clients of ``cohort`` that trained each model of the state ``after`` the round, (K,) float64.

    A client counts for a model if its update has a weight in the model's average. If the number of models changed in
    the round, a client counts for the model to which it is assigned.
    """
    clusters = len(after.models)
    masks = [training.weights != 0 for training in plan.trainings if training.weights is not None]
    if not masks:
        return torch.zeros(clusters, dtype=torch.float64)
    if len(masks[0]) != clusters:
        return torch.bincount(after.assignment[cohort.clients], minlength=clusters).double()
    return torch.stack(masks).any(dim=0).sum(dim=1).double()
