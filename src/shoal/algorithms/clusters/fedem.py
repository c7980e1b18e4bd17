"""FedEM: each client's data are a mixture of the same distributions, and clients train one model per distribution."""

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
    """Every client trains all M models, each on its own examples by the model's responsibilities for them.

    E step: ``q_sm = pi_im exp(-loss_sm) / sum_j pi_ij exp(-loss_sj)`` for each example s of client i, and then
    ``pi_im`` is the mean of q_sm over them. M step: model m is trained on the mean over a batch of ``q_sm * loss_sm``,
    and becomes the average of the clients' results, weighted by their examples. All pi_im start as 1 / M. With M = 1 it
    is FedAvg, bit for bit.

    A client of FedEM predicts by the mixture ``sum_m pi_im p_m(y | x)`` (`mixture_outputs`). Figures and attacks here
    are of one model, that of the highest pi_im after one more E step, which is the client's assigned cluster. Each
    example has trained every model, so all clients are members of all M models. The weights pi_i stay with the client,
    but the length of its updates shows them: a model that weighs half in every example takes steps half as long.

    Ours: the average is over the clients of the round (the authors' code also counts the others, with what they last
    held). The loss stands for ``-log p_m(y | x)``, so it should be in nats. DP-SGD and defences that change what is
    minimised are refused, since responsibilities follow from all of a client's examples.

    Args:
        clusters: M, the components of the mixture (the paper: 3).

    Source: Marfoq, Neglia, Bellet, Kameni, Vidal 2021, arXiv:2108.10252, the client-server algorithm FedEM, as the
    authors' code (omarfoq/FedEM) has it: its expectation step, weights and loss were read there, not in the paper's
    text.

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
        """The averages are the new models; each client's weights are the means of its responsibilities."""
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
        """The q (m, M) float64 of the clients' examples, from their ``losses`` (m, M)."""
        prior = state.clients[_WEIGHTS][cohort.clients].log()
        return (prior[cohort.owners] - losses).softmax(dim=1)


_WEIGHTS = "fedem.weights"


def plan_responsibilities(plan: RoundPlan) -> Tensor:
    """Return the responsibilities (m, M) float32 of a plan, the weights of examples in training."""
    weights = [training.example_weights for training in plan.trainings if training.example_weights is not None]
    return torch.stack(weights, dim=1)


def mixture_outputs(outputs: Tensor, weights: Tensor) -> Tensor:
    """The prediction of a client of FedEM: the logarithms (B, C) of the mixture's probabilities.

    Args:
        outputs: (M, B, C), the outputs of the M models on B inputs.
        weights: (M,), the client's pi, that of client i ``state.clients["fedem.weights"][i]``.

    >>> outputs = torch.tensor([[[100.0, 0.0]], [[0.0, 100.0]]])
    >>> mixture_outputs(outputs, torch.tensor([0.75, 0.25])).exp()
    tensor([[0.7500, 0.2500]])
    """
    return (outputs.log_softmax(dim=2) + weights.log().to(outputs)[:, None, None]).logsumexp(dim=0)
