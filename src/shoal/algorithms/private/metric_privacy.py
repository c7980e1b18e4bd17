"""Metric privacy at the server: noise on each average, in proportion to how far the round's clients are apart."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import Wrapper, require_kept_models
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import NonNegativeFloat, settings
from shoal.engine import Aggregate, Algorithm, Cohort, LocalSGD, LocalTraining, RoundPlan, State


@settings
class MetricPrivacy(Wrapper):
    """After the update of ``base``, ``model_k <- model_k + N(0, (noise_multiplier * w_k * d_k)^2 I)``.

    d_k is the largest L2 distance between two models that clients of the round sent for model k, and w_k the largest
    weight of one of them in its average, 1 / m of m equal clients. ``w_k * d_k`` bounds how far the average moves where
    one client sends what another sent; in global differential privacy a clipping bound stands in its place. So clients
    that agree are hidden with little noise. A client that is alone in its cluster has d_k = 0 and is not hidden at all.
    No epsilon is stated.

    A model for which nobody sent anything stays as the base leaves it. With ``noise_multiplier`` 0 this is ``base``,
    bit for bit. The server keeps all n updates of a round. Without batch norm only, whose statistics noise would make
    negative.

    Args:
        base: trains the models; clients must send something (not ``local``).
        noise_multiplier: standard deviation of the noise on a parameter, in units of w_k * d_k.

    Source: Sainz-Pardo Diaz, Athanasiou, Jung, Palamidessi, Lopez Garcia 2025, arXiv:2502.01352 (Knowledge-Based
    Systems, 2026), who say that it guides the noise and is no formal guarantee. Only the abstracts were at hand:
    Gaussian noise, the server's, scaled by a distance between the clients' models of the round. That the distance is
    the largest of two models, and the factor before it, are ours.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> for clients in ([one, one, one], [one, one, other]):
        ...     federation = shoal.Federation.from_tensors(clients, test=one)
        ...     algorithms = shoal.FedAvg(), shoal.MetricPrivacy(shoal.FedAvg())
        ...     results = [shoal.simulate(federation, model, rule, shoal.LocalSGD(), rounds=1) for rule in algorithms]
        ...     print(results[0].state.models.equal(results[1].state.models))
        ...
        True
        False
    """

    base: Algorithm = FedAvg()
    noise_multiplier: NonNegativeFloat = 1.0
    name: Literal["metric-privacy"] = "metric-privacy"
    title: ClassVar[str] = "Metric privacy"
    moves_by_average: ClassVar[bool] = False

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """The base must keep its number of models, each of which gets the noise of what was sent for it."""
        require_kept_models(self)
        super().check(local, risk_period)

    def check_layout(self, layout: Layout) -> None:
        """All parameters must be trained."""
        require(
            layout.trainable == layout.size,
            "metric privacy needs a network whose parameters are all trained, without batch norm; "
            f"{layout.size - layout.trainable} of this one's numbers are not",
        )

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The base's plan, of which the server keeps what it receives.

        Raises:
            InputError: the base's clients send nothing.
        """
        plan = super().plan(state, cohort)
        sent = any(training.weights is not None for training in plan.trainings)
        require(sent, f"metric privacy needs clients that send models; those of {type(self.base).__name__} do not")
        trainings = (
            training if training.weights is None else replace(training, keep=_Whole(training.keep))
            for training in plan.trainings
        )
        return replace(plan, trainings=tuple(trainings))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The base's update, from what it asked to keep; then noise."""
        moved = _largest_moves(plan, aggregate, cohort.layout)
        kept, trainings = list[Tensor | None](), list[LocalTraining]()
        for training, update in zip(plan.trainings, aggregate.kept, strict=True):
            if isinstance(training.keep, _Whole) and update is not None:
                then = training.keep.then
                kept.append(None if then is None else then(update))
                trainings.append(replace(training, keep=then))
            else:
                kept.append(update)
                trainings.append(training)
        base = replace(plan, trainings=tuple(trainings))
        after = super().server_update(state, cohort, base, Aggregate(aggregate.models, tuple(kept)))
        if self.noise_multiplier == 0:
            return after
        noise = torch.randn(
            moved.shape[0], after.models.shape[1], generator=cohort.stream("metric privacy").generator()
        )
        return replace(after, models=after.models + (self.noise_multiplier * moved[:, None] * noise).to(after.models))


@dataclass(frozen=True)
class _Whole:
    """``keep`` of a training that keeps whole updates, and the ``keep`` of the base."""

    then: Callable[[Tensor], Tensor] | None

    def __call__(self, update: Tensor) -> Tensor:
        return update


def _largest_moves(plan: RoundPlan, aggregate: Aggregate, layout: Layout) -> Tensor:
    """(K,) float64, ``w_k * d_k`` of each model; 0 where fewer than two clients sent anything for it."""
    sent = [
        (training.weights, training.shared_part(training.initial_rows().to(update) + update, layout))
        for training, update in zip(plan.trainings, aggregate.kept, strict=True)
        if training.weights is not None and update is not None
    ]
    if not sent:
        return torch.zeros(len(aggregate.models), dtype=torch.float64)
    weights, ends = torch.cat([part for part, _ in sent], dim=1), torch.cat([part for _, part in sent])
    moves = [float(row.max()) * largest_distance(ends[row != 0]) for row in weights]
    return torch.tensor(moves, dtype=torch.float64)


def largest_distance(models: Tensor) -> float:
    """The largest L2 distance between two of some models (m, P); 0 of fewer than two.

    >>> largest_distance(torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]]))
    5.0
    """
    if len(models) < 2:
        return 0.0
    # Squares by the Gram matrix of what differs from their mean, in float64: m * m numbers, not m * m * P.
    different = models.double() - models.double().mean(dim=0)
    gram = different @ different.T
    squares = gram.diagonal()[:, None] + gram.diagonal() - 2 * gram
    return math.sqrt(max(float(squares.max()), 0.0))
