"""FedEM: each client's data are a mixture of distributions, with one model per distribution."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
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
    RoundPlan,
    State,
    averaging_weights,
)


@settings
class FedEM:
    """Every client trains all M models, and weights each example by the model's responsibility for the example.

    - E step: the responsibility of model m for example s of client i is ``q_sm = pi_im exp(-loss_sm) / sum_j pi_ij
      exp(-loss_sj)``. The weight ``pi_im`` of model m is the mean of ``q_sm`` over the client's examples, initially 1 /
      M.
    - M step: a client trains model m on the mean of ``q_sm * loss_sm`` over each batch. The server averages the
      clients' results, weighted by their numbers of examples.

    FedEM predicts with the mixture ``sum_m pi_im p_m(y | x)`` (see `mixture_outputs`). Shoal evaluates and attacks one
    model per client: the model with the highest weight ``pi_im``, which is also the client's assigned cluster. All
    clients are members of all M models, because each example trains every model. The weights ``pi_im`` are not sent,
    but the norms of a client's updates reveal the weights. FedEM refuses DP-SGD and defences that change the objective.

    Args:
        clusters: M, the number of models in the mixture (3 in the paper).

    Source: Marfoq et al. 2021, arXiv:2108.10252. The E step, the weights and the loss follow the authors' code
    (omarfoq/FedEM).

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> result = shoal.simulate(federation, model, shoal.FedEM(clusters=2), local, rounds=5)
        >>> result.state.clients["fedem.weights"].round(decimals=2).tolist()
        [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]
    """

    clusters: Positive = 3
    name: Literal["fedem"] = "fedem"
    title: ClassVar[str] = "FedEM"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        local.check_example_weights()

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        state = IFCA(self.clusters).init(engine, federation, local, stream)
        weights = torch.full((len(federation), self.clusters), 1 / self.clusters, dtype=torch.float64)
        return replace(state, clients={_WEIGHTS: weights})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        losses = cohort.example_losses(state.models)
        q = self.responsibilities(losses, state, cohort)
        trainings = []
        for m in range(self.clusters):
            model = torch.full((len(cohort),), m)
            weights = averaging_weights(model, cohort.sizes, self.clusters)
            trainings.append(LocalTraining(state.models, model, weights, example_weights=q[:, m].float()))
        return RoundPlan(cohort.means(q).argmax(dim=1), tuple(trainings), cohort.means(losses))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        means = cohort.means(plan_responsibilities(plan))
        weights = state.clients[_WEIGHTS].clone()
        # They add up to 1 but for the rounding of the trainings' weights.
        weights[cohort.clients] = means / means.sum(dim=1, keepdim=True)
        return replace(state, models=aggregate.models, clients={**state.clients, _WEIGHTS: weights})

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        q = self.responsibilities(cohort.example_losses(state.models), state, cohort)
        assignment = cohort.means(q).argmax(dim=1)
        return DeployedModels(state.models, assignment, assignment)

    def responsibilities(self, losses: Tensor, state: State, cohort: Cohort) -> Tensor:
        """Compute the responsibilities (m, M) float64 for the clients' examples from their ``losses`` (m, M)."""
        prior = state.clients[_WEIGHTS][cohort.clients].log()
        return (prior[cohort.owners] - losses).softmax(dim=1)


_WEIGHTS = "fedem.weights"


def plan_responsibilities(plan: RoundPlan) -> Tensor:
    """Return the weights of the examples in training, which are the responsibilities of a plan, (m, M) float32."""
    weights = [training.example_weights for training in plan.trainings if training.example_weights is not None]
    return torch.stack(weights, dim=1)


def mixture_outputs(outputs: Tensor, weights: Tensor) -> Tensor:
    """Compute the log-probabilities (B, C) of a client's mixture of M models.

    Args:
        outputs: the outputs of the M models on B inputs, (M, B, C).
        weights: the client's weights of the models, (M,). The weights of client i are
            ``state.clients["fedem.weights"][i]``.

    >>> outputs = torch.tensor([[[100.0, 0.0]], [[0.0, 100.0]]])
    >>> mixture_outputs(outputs, torch.tensor([0.75, 0.25])).exp()
    tensor([[0.7500, 0.2500]])
    """
    return (outputs.log_softmax(dim=2) + weights.log().to(outputs)[:, None, None]).logsumexp(dim=0)
