"""IFCA: each client trains the model with the lowest loss on its data."""

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
"""The default of ``max_clusters``."""

_PARTS = ("base", "ifca")
"""The fields of an algorithm that can contain an `IFCA`."""


@settings
class Redraw:
    """Repeated draws of the initial models until enough clients choose each model, as in IFCA's official code.

    Args:
        share: the fraction of sampled clients that must choose each model (0.35 for K = 2 and 0.1 for K = 4 in the
            official code).
        clients: the number of sampled clients (20 in the official code).
        attempts: the largest number of draws. If every draw fails, Shoal uses one more draw and logs a warning.

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
        """Draw initial models (K, P) until a draw satisfies the rule.

        Args:
            draw: a function from an attempt's number (1 for the first attempt) to models (K, P).
            losses: a function from models (K, P) to their losses on the sampled clients' data, (n, K).
        """
        for attempt in range(1, self.attempts + 1):
            models = draw(attempt)
            best = losses(models).argmin(dim=1)
            if float((torch.bincount(best, minlength=len(models)) / len(best)).min()) >= self.share:
                return models
        LOG.warning(
            "none of %d draws of initial models gave every model %g of the clients; using another draw",
            self.attempts, self.share,
        )  # fmt: skip
        return draw(self.attempts + 1)


@settings
class IFCA:
    """Each client trains whichever of K models has the lowest loss on its examples; the server averages per cluster.

    Every client receives all K models. Clients send their choices of a model without noise, so the epsilon of DP-SGD
    does not cover the choices. With random initial models, a small group may join a large group's cluster. `Redraw`,
    `OneShotStart` and `FedAvgStart` are other ways to initialise the models.

    With ``clusters`` = "auto", Shoal first trains IFCA with 1 to ``max_clusters`` models on some of the examples. K is
    the smallest number that no larger number beats significantly (paired t tests of the losses on the remaining
    examples, total level 5 %). If K is above 1 and no other start wraps IFCA, `OneShotStart` initialises the models.

    Args:
        clusters: K, the number of models; "auto" lets Shoal choose K.
        max_clusters: the largest number of models that "auto" tries; 4 by default.
        averaging: whether the server averages each client's "model" (the paper's Option II) or "gradient" (Option I).
            With "gradient", the server divides a cluster's sum of one-step gradients by the number of all clients in
            the round.
        weighting: the clients' weights in a cluster's average: "equal" (the paper), or their numbers of "examples".
        choose_by: the examples on which a client compares the models: "all" its training examples, or the round's first
            "batch".
        redraw: the rule for redrawing the initial models; by default Shoal draws once.

    Source: Ghosh et al. 2020, arXiv:2006.04088, Algorithm 1.

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
            require(self.clusters != "auto", "'clusters' must be a number with 'redraw' (got 'auto')")
            share = self.redraw.share * self.number
            require(share <= 1, f"'redraw.share' times 'clusters' must be at most 1 (got {share:g})")

    @property
    def membership_barrier(self) -> str:
        return "draws its initial models by clients' losses if 'redraw' is set" if self.redraw else ""

    @property
    def trains_clusters_alone(self) -> bool:
        return self.averaging == "model"

    @property
    def number(self) -> int:
        """The number of models K.

        Raises:
            InputError: ``clusters`` is "auto".
        """
        if self.clusters == "auto":
            raise InputError("'clusters' must be a number here (got 'auto'); only simulations can choose the number")
        return self.clusters

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require(
            self.averaging == "model" or local.steps == 1,
            "'local.steps' must be 1 with averaging = \"gradient\"",
        )

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        require(
            self.number <= len(federation),
            f"'clusters' must be at most the number of clients, {len(federation)} (got {self.number})",
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
        """Plan the training of each client's cluster model by an ``assignment`` (n,) int64.

        The plan records the ``losses`` (n, K) that decided the assignment.
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
        require(
            self.redraw is None,
            "IFCA's 'redraw' must be removed for training on several machines",
        )
        require(self.number >= 1, "'clusters' must be a number on several machines")
        return RemoteRounds(self, self)


def most_clusters(algorithm: object) -> int | None:
    """Return the largest number of clusters to try, or None if no part of the algorithm has ``clusters`` = "auto"."""
    if isinstance(algorithm, IFCA) and algorithm.clusters == "auto":
        return algorithm.max_clusters or MAX_CLUSTERS
    parts = (getattr(algorithm, name, None) for name in _PARTS)
    return next((most for most in (most_clusters(part) for part in parts if part is not None) if most), None)


def with_clusters(algorithm: Any, clusters: int) -> Any:  # noqa: ANN401 - any algorithm
    """Replace ``clusters`` = "auto" by a number in an algorithm and its bases.

    >>> from shoal import FedProx
    >>> with_clusters(FedProx(IFCA("auto")), 3).base.clusters
    3
    """
    if isinstance(algorithm, IFCA) and algorithm.clusters == "auto":
        return replace(algorithm, clusters=clusters)
    parts = {name: getattr(algorithm, name) for name in _PARTS if most_clusters(getattr(algorithm, name, None))}
    return replace(algorithm, **{name: with_clusters(part, clusters) for name, part in parts.items()})
