"""IFCA: each client trains the model with the lowest loss on its data, so that clusters of similar clients form."""

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, settings
from shoal.data.federation import Federation
from shoal.engine import (
    Aggregate,
    Cohort,
    DeployedModels,
    Engine,
    LocalSGD,
    LocalTraining,
    RemoteRounds,
    RoundPlan,
    State,
    averaging_weights,
)

LOG = logging.getLogger(__name__)

MAX_CLUSTERS = 4
"""Largest number of clusters that "auto" tries without ``max_clusters``."""

_PARTS = ("base", "ifca")
"""Fields of an algorithm that may hold an IFCA."""


@settings
class Redraw:
    """The official code's start: draw all K models again until enough clients choose each.

    Args:
        share: the share of sampled clients that must choose each model (official: 0.35 for K = 2, 0.1 for K = 4).
        clients: number of clients to sample (official: 20).
        attempts: draws before the last is used anyway, with a warning.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[1.0], [3.0]], [0, 1])
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> for redraw in (None, shoal.Redraw(share=0.5, clients=4)):
        ...     algorithm = shoal.IFCA(clusters=2, redraw=redraw)
        ...     result = shoal.simulate(federation, model, algorithm, shoal.LocalSGD(), rounds=1)
        ...     print(result.rounds["clients"].tolist())
        ...
        [4, 0]
        [2, 2]
    """

    share: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.35
    clients: Positive = 20
    attempts: Positive = 100

    def models(self, draw: Callable[[int], Tensor], losses: Callable[[Tensor], Tensor]) -> Tensor:
        """Return initial models (K, P), the first draw that fits or the last.

        Args:
            draw: returns the models (K, P) of an attempt, from 1.
            losses: returns the losses (n, K) of models (K, P) on the data of the sampled clients.
        """
        for attempt in range(1, self.attempts + 1):
            models = draw(attempt)
            best = losses(models).argmin(dim=1)
            if float((torch.bincount(best, minlength=len(models)) / len(best)).min()) >= self.share:
                return models
        LOG.warning(
            "no draw of initial models in %d gave every model %g of the clients; the last draw is used",
            self.attempts, self.share,
        )  # fmt: skip
        return draw(self.attempts + 1)


@settings
class IFCA:
    """K models: every client trains the model with the lowest loss on its examples, and the server averages by cluster.

    Every client receives all K models. It computes its choice without noise and sends it, so no epsilon of DP-SGD
    covers it. From random models a small group may end in a large group's cluster; other starts are `Redraw`,
    `OneShotStart` and `FedAvgStart`.

    With ``clusters`` "auto" a simulation first trains with 1, 2, ... ``max_clusters`` on part of the examples. It takes
    the smallest number that no larger one beats significantly on the other examples (paired t tests, 5 % in all).
    Several clusters begin with `OneShotStart`, unless another start wraps this; config.toml records both.

    Args:
        clusters: K, the number of models; "auto": chosen before the run by held-out losses.
        max_clusters: the largest number that "auto" tries; None: 4.
        averaging: "model" averages the clients' models within a cluster (Option II). "gradient" (Option I, one local
            step) averages their gradients, divided by the size of the whole cohort as in the paper and the official
            code, so a small cluster moves less.
        weighting: clients of a cluster have "equal" weights (the paper), or weights by "examples".
        choose_by: score the models on "all" local examples, or on the first "batch" of the round's training.
        redraw: the official rule for initial models; left out: the first draw.

    Source: Ghosh, Chung, Yin, Ramchandran 2020, arXiv:2006.04088, Algorithm 1.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> result = shoal.simulate(federation, model, shoal.IFCA(clusters=2), local, rounds=3)
        >>> result.clients["cluster"].tolist(), result.clients["train_accuracy"].tolist()
        ([0, 0, 1, 1], [1.0, 1.0, 1.0, 1.0])
    """

    clusters: Positive | Literal["auto"] = 2
    averaging: Literal["model", "gradient"] = "model"
    weighting: Literal["equal", "examples"] = "equal"
    choose_by: Literal["all", "batch"] = "all"
    redraw: Redraw | None = None
    max_clusters: Positive | None = None
    name: Literal["ifca"] = "ifca"
    title: ClassVar[str] = "IFCA"

    def __post_init__(self) -> None:
        if self.redraw is not None:
            require(self.clusters != "auto", "'redraw' needs a number of clusters; got clusters = 'auto'")
            share = self.redraw.share * self.number
            require(share <= 1, f"'redraw.share' * clusters must be at most 1; got {share:g}")

    @property
    def membership_barrier(self) -> str:
        return "draws its first models by clients' losses where 'redraw' is set" if self.redraw else ""

    @property
    def trains_clusters_alone(self) -> bool:
        return self.averaging == "model"

    @property
    def number(self) -> int:
        """K.

        Raises:
            InputError: it is left open.
        """
        if self.clusters == "auto":
            raise InputError("clusters = 'auto' is chosen where a simulation is run; give a number here")
        return self.clusters

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require(
            self.averaging == "model" or local.steps == 1,
            "averaging = 'gradient' takes one gradient per round, so local training must be of 'steps' = 1",
        )

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        require(
            self.number <= len(federation),
            f"'clusters' must be at most the federation's {len(federation)} clients; got {self.number}",
        )

        def draw(attempt: int) -> Tensor:
            streams = stream if attempt == 1 else stream("redraw", attempt - 1)
            return torch.stack([engine.model.init(streams("model", k)) for k in range(self.number)])

        if self.redraw is None or self.number == 1:
            return State.initial(draw(1), len(federation))
        order = torch.randperm(len(federation), generator=stream("redraw clients").generator())
        sample = federation.clients.take(torch.argsort(federation.ids)[order[: self.redraw.clients]])
        return State.initial(self.redraw.models(draw, lambda models: engine.losses(models, sample)), len(federation))

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        losses = cohort.losses(state.models, self.choose_by)
        return self.plan_of(losses.argmin(dim=1), losses, state, cohort)

    def plan_of(self, assignment: Tensor, losses: Tensor | None, state: State, cohort: Cohort) -> RoundPlan:
        """Plan training of each client's cluster model by ``assignment`` (n,) int64, for other rules of choice.

        ``losses`` (n, K) are the losses that decided it, for the record.
        """
        clusters = len(state.models)
        sizes = cohort.sizes.double() if self.weighting == "examples" else torch.ones(len(cohort), dtype=torch.float64)
        weights = averaging_weights(assignment, sizes, clusters)
        if self.averaging == "gradient":
            within = torch.zeros(clusters, dtype=torch.float64).index_add_(0, assignment, sizes)
            weights = weights * (within / sizes.sum())[:, None]
        return RoundPlan(assignment, (LocalTraining(state.models, assignment, weights),), losses)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        return replace(state, models=aggregate.models)

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        assignment = cohort.losses(state.models).argmin(dim=1)
        return DeployedModels(state.models, assignment, assignment)

    def remote_rounds(self) -> RemoteRounds:
        require(self.redraw is None, "IFCA's 'redraw' must be left out on several machines")
        require(self.number >= 1, "'clusters' must be a number on several machines")
        return RemoteRounds(self, self)


def most_clusters(algorithm: object) -> int | None:
    """Return the largest number of clusters to try; None if the algorithm and its bases have a number."""
    if isinstance(algorithm, IFCA) and algorithm.clusters == "auto":
        return algorithm.max_clusters or MAX_CLUSTERS
    parts = (getattr(algorithm, name, None) for name in _PARTS)
    return next((most for most in (most_clusters(part) for part in parts if part is not None) if most), None)


def with_clusters(algorithm: Any, clusters: int) -> Any:  # noqa: ANN401 - any algorithm
    """Set the number of clusters in an algorithm and its bases where it is "auto".

    >>> from shoal import FedProx
    >>> with_clusters(FedProx(IFCA("auto")), 3).base.clusters
    3
    """
    if isinstance(algorithm, IFCA) and algorithm.clusters == "auto":
        return replace(algorithm, clusters=clusters)
    parts = {name: getattr(algorithm, name) for name in _PARTS if most_clusters(getattr(algorithm, name, None))}
    return replace(algorithm, **{name: with_clusters(part, clusters) for name, part in parts.items()})
