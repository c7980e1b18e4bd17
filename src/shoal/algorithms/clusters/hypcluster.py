"""HypCluster: IFCA's choice by loss, weighted by examples, with an optimizer at the server.

Source: Mansour, Mohri, Ro, Suresh 2020, arXiv:2002.10619 (user clustering); server optimizer and farthest-first
start as in fedjax (`fedjax/algorithms/hyp_cluster.py`), a library of the same group.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.one_model.fedopt import FedOpt
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Cohort, Deployed, Engine, LocalSGD, RoundPlan, State, averaging_weights

_Beta = Annotated[float, Field(ge=0, lt=1, strict=True)]


@settings
class HypCluster:
    """Client i trains ``k = argmin_k loss_ik``, and model k moves by ``sum_i n_i (end_i - model_k) / sum_i n_i``.

    The sum is over the clients of model k, n_i their numbers of examples; and it is the gradient of an optimizer at the
    server (`FedOpt`), which each model has for itself. With "sgd", learning rate 1 and clients of equal sizes it is
    IFCA.

    The "farthest-first" start takes the first round that has clients: some of them train the first random model, each
    by itself, and the server takes K of the results, the first at random and each other from the client whose lowest
    loss under those taken is the highest. These losses are sent without noise, so DP-SGD is refused. Other defences act
    in that round as in any other, but each of these models shows one client's examples alone until others train it.
    Where fewer clients than K train then, the remaining models stay random. fedjax lets candidates train in advance;
    doing it in a round is ours.

    Args:
        clusters: K, the number of models.
        start: "random": K independent random models; or "farthest-first".
        candidates: clients that train for the farthest-first start, drawn at random.
        optimizer: of the server: "sgd", "adam" or "yogi".
        server_learning_rate: of the server.
        beta1: decay of the first moment; with "sgd", the momentum.
        beta2: decay of the second moment.
        tau: degree of adaptivity of "adam" and "yogi".

    Source: Mansour, Mohri, Ro, Suresh 2020, arXiv:2002.10619 (user clustering); server optimizer and farthest-first
    start as in fedjax (`fedjax/algorithms/hyp_cluster.py`), a library of the same group.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=5, learning_rate=1.0)
        >>> algorithms = shoal.IFCA(clusters=2), shoal.HypCluster(clusters=2)
        >>> ifca, hypcluster = (shoal.simulate(federation, model, each, local, rounds=3) for each in algorithms)
        >>> hypcluster.state.models.allclose(ifca.state.models), hypcluster.clients["cluster"].tolist()
        (True, [0, 0, 1, 1])
    """

    clusters: Positive = 2
    start: Literal["random", "farthest-first"] = "random"
    candidates: Positive = 20
    optimizer: Literal["sgd", "adam", "yogi"] = "sgd"
    server_learning_rate: PositiveFloat = 1.0
    beta1: _Beta = 0.0
    beta2: _Beta = 0.99
    tau: PositiveFloat = 1e-3
    name: Literal["hypcluster"] = "hypcluster"
    title: ClassVar[str] = "HypCluster"

    @property
    def moves_by_average(self) -> bool:
        """Whether each model moves by the weighted mean of its updates, as with "sgd", learning rate 1, no momentum."""
        return (self.optimizer, self.server_learning_rate, self.beta1) == ("sgd", 1.0, 0.0)

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Steps must not be private with a "farthest-first" start, for which clients send losses."""
        del risk_period
        if self.start == "farthest-first":
            local.check_only_gradients_sent('their losses for HypCluster\'s "farthest-first" start')

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """K independent random models, with the optimizer's moments."""
        state = self._base.init(engine, federation, local, stream)
        if self.start == "random":
            return state
        return replace(state, server={**state.server, _STARTED: torch.zeros(1, dtype=torch.int64)})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Each client trains the model with the lowest loss; before a farthest-first start, candidates the first."""
        return self._candidates(state, cohort) if self._starts(state) else self._base.plan(state, cohort)

    def plan_of(self, assignment: Tensor, losses: Tensor | None, state: State, cohort: Cohort) -> RoundPlan:
        """See `IFCA.plan_of`; before a farthest-first start the plan of that, whatever the assignment."""
        if self._starts(state):
            return self._candidates(state, cohort)
        return self._ifca.plan_of(assignment, losses, state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """A step of the optimizer for the models that clients trained; or the farthest-first start."""
        if not self._starts(state):
            return self._base.server_update(state, cohort, plan, aggregate)
        ((update,), (training,)) = aggregate.kept, plan.trainings
        assert update is not None
        trains = training.participants()
        candidates = torch.nonzero(trains).flatten()
        ends = state.models[0] + update.to(state.models)[candidates]

        def losses(candidate: int) -> Tensor:
            return cohort.losses(ends[candidate][None])[candidates, 0]

        first = torch.randint(len(candidates), (1,), generator=cohort.stream("farthest-first").generator())
        taken = farthest_first(losses, int(first), min(self.clusters, len(candidates)))
        models, trained = state.models.clone(), torch.zeros_like(state.trained)
        models[: len(taken)] = ends[taken]
        # Each model has learnt from the one client that trained it, and from nobody else.
        trained[cohort.clients[candidates[taken]], torch.arange(len(taken))] = cohort.round
        server = {**state.server, _STARTED: torch.ones(1, dtype=torch.int64)}
        return replace(state, models=models, trained=trained, server=server)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Each client uses the model with the lowest loss."""
        return self._base.deployed(state, cohort)

    def _candidates(self, state: State, cohort: Cohort) -> RoundPlan:
        """The plan in which candidates train the first model, and the server keeps what they send."""
        order = torch.randperm(len(cohort), generator=cohort.stream("candidates").generator())
        trains = torch.zeros(len(cohort), dtype=torch.bool)
        trains[order[: self.candidates]] = True
        plan = FedAvg().plan(state, cohort)
        weights = averaging_weights(plan.assignment, cohort.sizes * trains, self.clusters)
        (training,) = plan.trainings
        kept = replace(training, weights=weights, keep=lambda update: update, participates=trains)
        return replace(plan, trainings=(kept,))

    def _starts(self, state: State) -> bool:
        """Whether the next round is that of a farthest-first start."""
        return self.start == "farthest-first" and not bool(state.server[_STARTED])

    @property
    def _ifca(self) -> IFCA:
        return IFCA(self.clusters, weighting="examples")

    @property
    def _base(self) -> FedOpt:
        rate = self.server_learning_rate
        return FedOpt(self._ifca, self.optimizer, rate, self.beta1, self.beta2, self.tau)


_STARTED = "hypcluster.started"


def farthest_first(losses: Callable[[int], Tensor], first: int, count: int) -> list[int]:
    """Candidates of whom each has the highest loss under the best model of those before it.

    Args:
        losses: of a candidate's model on the examples of all m candidates: (m,).
        first: the candidate to begin with.
        count: how many to find, at most m.

    >>> distance = torch.tensor([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]])
    >>> farthest_first(lambda candidate: distance[candidate], 0, 3)
    [0, 2, 1]
    """
    taken = [first]
    lowest = losses(first).clone()
    while len(taken) < count:
        # Those taken already must not be taken again, where a model is worse for its own client than for others.
        lowest[taken] = -torch.inf
        taken.append(int(lowest.argmax()))
        lowest = torch.minimum(lowest, losses(taken[-1]))
    return taken
