"""FedSoft: each client's personal model is pulled towards the models of all clusters."""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from shoal.algorithms.clusters.ifca import IFCA
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import NonNegativeFloat, Positive, settings
from shoal.data.federation import Federation
from shoal.engine import (
    Aggregate,
    ClientVectors,
    Cohort,
    DeployedModels,
    Engine,
    LinearTerm,
    LocalSGD,
    LocalTraining,
    PersonalModels,
    RemoteRounds,
    RoundPlan,
    State,
)

_Smoother = Annotated[float, Field(ge=0, le=1, strict=True)]


@settings
class FedSoft:
    """Soft clusters: client i minimises ``f_i(w) + strength / 2 * sum_k u_ik |w - c_k|^2`` over its personal model w.

    The importance ``u_ik`` is the fraction of client i's examples for which the model ``c_k`` of cluster k has the
    lowest loss. The server computes ``c_k`` as the mean of the clients' personal models, weighted by importance and
    number of examples. Each client uses its personal model. A client's assigned cluster is the cluster with the highest
    importance.

    With importances of 0 or 1, strength 0 and ``start`` = "clusters", the result equals that of `IFCA` weighted by
    examples, bit for bit. FedSoft refuses DP-SGD, because the importances are counts of examples that clients send
    without noise.

    Args:
        clusters: K, the number of clusters.
        strength: the factor lambda of the penalty (0.01 to 1 in the authors' code, 0.1 on MNIST).
        smoother: the importance of a cluster whose model is best for none of the client's examples.
        selection: the number of clients that the server draws per cluster without replacement; by default all clients
            train. The draw probabilities are proportional to importance times number of examples.
        start: the initial parameters of local training: the client's "personal" model, or the mean of the models of all
            "clusters", weighted by importance.

    Source: Ruan, Joe-Wong 2021, arXiv:2112.06053. The formulas follow the authors' code (ycruan/FedSoft), not the
    paper's text.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> hard = shoal.FedSoft(clusters=2, strength=0.0, smoother=0.0, start="clusters")
        >>> algorithms = shoal.IFCA(clusters=2, weighting="examples"), hard
        >>> models = [shoal.simulate(federation, model, rule, local, rounds=3).state.models for rule in algorithms]
        >>> models[0].equal(models[1])
        True
    """

    clusters: Positive = 2
    strength: NonNegativeFloat = 0.1
    smoother: _Smoother = 1e-4
    selection: Positive | None = None
    start: Literal["personal", "clusters"] = "personal"
    name: Literal["fedsoft"] = "fedsoft"
    title: ClassVar[str] = "FedSoft"
    moves_by_average: ClassVar[bool] = False

    def check(self, local: LocalSGD, risk_period: int) -> None:
        local.check_only_gradients_sent("FedSoft's importances (counts of their examples)")

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        state = IFCA(self.clusters).init(engine, federation, local, stream)
        personal = ClientVectors.same(engine.model.init(stream("model", self.clusters)), len(federation))
        return replace(state, personal={"fedsoft": personal})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        losses = cohort.example_losses(state.models)
        importance = self._importance(losses, cohort)
        share = importance / importance.sum(dim=1, keepdim=True)
        weights, trains = self._weights(importance, cohort)
        everybody = torch.arange(len(cohort))
        from_personal = self.start == "personal"
        # The sum of the pulls is one pull, to the clusters' mean by importance.
        pull = LinearTerm(self.strength * importance.sum(dim=1).float(), share.to(state.models) @ state.models)
        training = LocalTraining(
            initial_params=state.personal["fedsoft"][cohort.clients] if from_personal else state.models,
            init_index=everybody if from_personal else share.float(),
            weights=weights,
            keep=lambda update: update,
            # A term of 0 could make the engine compute in another order.
            linear_term=pull if self.strength else None,
            participates=trains,
        )
        return RoundPlan(importance.argmax(dim=1), (training,), cohort.means(losses))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        ((training,), (update,)) = plan.trainings, aggregate.kept
        trains = training.participants()
        if update is None or not bool(trains.any()):
            return state
        starts = training.initial_rows()
        personal = state.personal["fedsoft"].replace_rows(cohort.clients[trains], (starts + update.to(starts))[trains])
        return replace(state, models=aggregate.models, personal={**state.personal, "fedsoft": personal})

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        importance = self._importance(cohort.example_losses(state.models), cohort)
        models = PersonalModels.from_rows(state.personal["fedsoft"], cohort.clients)
        return DeployedModels(models, torch.arange(len(cohort)), importance.argmax(dim=1))

    def remote_rounds(self) -> RemoteRounds:
        require(
            self.selection is None,
            "FedSoft's 'selection' must be removed for training on several machines",
        )
        return RemoteRounds(self, self, choice="shares")

    def _importance(self, losses: Tensor, cohort: Cohort) -> Tensor:
        """Return the importances (n, K) float64 from the losses (m, K) of examples."""
        won = cohort.means(functional.one_hot(losses.argmin(dim=1), losses.shape[1]))
        return torch.where(won == 0, self.smoother, won)

    def _weights(self, importance: Tensor, cohort: Cohort) -> tuple[Tensor, Tensor | None]:
        """Return the weights W (K, n) float64, and a mask (n,) of the clients that train, or None if all train."""
        points = (importance * cohort.sizes.double()[:, None]).T
        if self.selection is None:
            total = points.sum(dim=1, keepdim=True)
            return torch.where(total > 0, points / total.clamp(min=1e-300), 0.0), None
        weights, draws = torch.zeros_like(points), cohort.stream("fedsoft.selection").generator()
        for k, row in enumerate(points):
            # With a smoother of 0 a cluster may have fewer clients than are to be drawn.
            drawn = min(self.selection, int((row > 0).sum()))
            if drawn:
                weights[k, torch.multinomial(row, drawn, generator=draws)] = 1 / drawn
        return weights, weights.any(dim=0)
