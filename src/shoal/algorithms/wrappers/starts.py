"""Starts: rounds that find the initial models of an algorithm with clusters.

IFCA needs initial models near the groups' optimal models (Ghosh et al. 2020, arXiv:2006.04088, Theorem 1). With
independent random initial models, all clients often choose the same model. `Redraw` improves the initial models before
the first round.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.clusters.one_shot import first_plan, group_updates, require_counted
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.one_model.server_only import train_on_server
from shoal.algorithms.wrapper import Wrapper, require_no_first_round
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.data import Federation
from shoal.engine import (
    Aggregate,
    Algorithm,
    Cohort,
    DeployedModels,
    Engine,
    LocalSGD,
    RoundPlan,
    State,
    averaging_weights,
)


class InitialisationPhase(Wrapper):
    """A wrapper whose first rounds find the initial models of ``base``.

    Rounds without clients do not count as start rounds. During the start rounds, tensors of ``base`` other than the
    models do not change.
    """

    membership_barrier: ClassVar[str] = "finds its initial models in separate rounds"

    @property
    def rounds(self) -> int:
        return 1

    @abstractmethod
    def start_plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Plan a start round."""

    @abstractmethod
    def start_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate, *, last: bool) -> State:
        """Return the state after a start round; the ``last`` start round sets the base's initial models."""

    def starting(self, state: State) -> bool:
        return bool(state.server[self._left])

    def add_tensors(self, state: State, layout: Layout) -> State:
        return replace(state, server={**state.server, self._left: torch.tensor([self.rounds])})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        return self.start_plan(state, cohort) if self.starting(state) else self.base.plan(state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        left = state.server[self._left]
        if not self.starting(state):
            after = self.base.server_update(state, cohort, plan, aggregate)
            return replace(after, server={**after.server, self._left: left})
        after = self.start_update(state, cohort, plan, aggregate, last=int(left) == 1)
        return replace(after, server={**after.server, self._left: left - 1})

    @property
    def _left(self) -> str:
        return f"{type(self).__name__}.left"


@settings
class ServerStart(Wrapper):
    """Pretraining of each model of ``base`` on the server's labelled examples, before the first round.

    Pretraining exposes no client and spends no epsilon. Reference federations start from the pretrained models. Attacks
    that use the server's examples as non-members fail, because the models were trained on these examples.

    Args:
        base: the algorithm that trains with the clients.
        local: the training on the server's examples, without clipping and noise; by default 20 epochs with the batch
            size and the learning rate of local training.

    Source: Nguyen et al., "Where to begin?", ICLR 2023, arXiv:2206.15387, for FedAvg with other pretraining data.

    Example:
        >>> import shoal
        >>> one, shadow = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]] * 20, [0, 1] * 20)
        >>> federation = shoal.Federation.from_tensors([one] * 3, test=one, shadow=shadow)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> toy = federation, model, shoal.ServerStart(shoal.FedAvg()), shoal.LocalSGD()
        >>> result = shoal.simulate(*toy, rounds=1, participation=0.0)
        >>> alone = shoal.simulate(federation, model, shoal.ServerOnly(), shoal.LocalSGD(), rounds=1)
        >>> result.state.models.equal(alone.state.models)
        True
    """

    base: Algorithm = IFCA()
    local: LocalSGD | None = None
    name: Literal["server-start"] = "server-start"
    title: ClassVar[str] = "Start on the shadow set"

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """Pretrain the models; raise `InputError` if the federation has no shadow examples."""
        state = super().init(engine, federation, local, stream)
        own = self.local or replace(local, epochs=20, steps=None)
        return replace(state, models=train_on_server(state.models, engine, federation, own, stream, self.name))


@settings
class OneShotStart(InitialisationPhase):
    """Initial models from one round: the k-means centers of models that clients train separately.

    If fewer than K clients take part, the remaining models keep the initial values of ``base``. Put other wrappers
    inside `OneShotStart`, because an outer wrapper would treat the new models as updates.

    Args:
        base: the algorithm that trains the K models.
        local: the local training of the start round; by default the same as in other rounds. Training in the start
            round must be long enough for the clients' models to differ by group.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithm = shoal.OneShotStart(shoal.IFCA(clusters=2))
        >>> result = shoal.simulate(federation, model, algorithm, local, rounds=3)
        >>> result.rounds.pivot(index="round", columns="cluster", values="clients").values.tolist()
        [[4, 0], [2, 2], [2, 2]]
    """

    base: Algorithm = IFCA()
    local: LocalSGD | None = None
    name: Literal["one-shot-start"] = "one-shot-start"
    title: ClassVar[str] = "One-shot start"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require_counted(self.local, local)
        require_no_first_round(self)
        super().check(local, risk_period)

    def start_plan(self, state: State, cohort: Cohort) -> RoundPlan:
        return first_plan(state, cohort, self.local)

    def start_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate, *, last: bool) -> State:
        (update,) = aggregate.kept
        assert update is not None
        return group_updates(state, cohort, update)[0]


@settings
class FedAvgStart(InitialisationPhase):
    """Initial models from FedAvg: K copies of one trained model, each with independent Gaussian noise.

    All clients that take part in FedAvg are members of every copy. Put other wrappers inside `FedAvgStart`, because an
    outer wrapper would treat the new models as updates.

    Args:
        base: the algorithm that trains the K copies.
        fedavg_rounds: the number of FedAvg rounds.
        noise: the standard deviation of each copy's noise, relative to the root mean square of each tensor. Batch
            norm's statistics get no noise.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> algorithm = shoal.FedAvgStart(shoal.IFCA(clusters=2), fedavg_rounds=2)
        >>> result = shoal.simulate(federation, model, algorithm, local, rounds=4)
        >>> result.rounds.pivot(index="round", columns="cluster", values="clients").values.tolist()
        [[4, 0], [4, 0], [2, 2], [2, 2]]
    """

    base: Algorithm = IFCA()
    fedavg_rounds: Positive = 10
    noise: PositiveFloat = 0.1
    name: Literal["fedavg-start"] = "fedavg-start"
    title: ClassVar[str] = "FedAvg start"

    @property
    def rounds(self) -> int:
        return self.fedavg_rounds

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require_no_first_round(self)
        super().check(local, risk_period)

    def start_plan(self, state: State, cohort: Cohort) -> RoundPlan:
        plan = FedAvg().plan(state, cohort)
        weights = averaging_weights(plan.assignment, cohort.sizes, len(state.models))
        return replace(plan, trainings=(replace(plan.trainings[0], weights=weights),))

    def start_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate, *, last: bool) -> State:
        if not last:
            return replace(state, models=aggregate.models)
        models = noisy_copies(aggregate.models[0], len(state.models), self.noise, cohort.layout, cohort.stream)
        return replace(state, models=models, trained=state.trained[:, :1].expand_as(state.trained).clone())

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        return (FedAvg() if self.starting(state) else self.base).deployed_models(state, cohort)


def noisy_copies(model: Tensor, count: int, noise: float, layout: Layout, stream: Stream) -> Tensor:
    """Return copies (count, P) of a model (P,) with Gaussian noise, scaled by the root mean square of each tensor."""
    scale = torch.zeros_like(model)
    for slot in layout.slots:
        place = slice(slot.start, slot.start + slot.size)
        if slot.start < layout.trainable:
            scale[place] = model[place].square().mean().sqrt()
    draws = [torch.randn(len(model), generator=stream("copy", k).generator()) for k in range(count)]
    return model + noise * scale * torch.stack(draws).to(model)


@dataclass(frozen=True)
class FarthestFirstStart(InitialisationPhase):
    """A one-round start that selects K of the models that some clients train separately (see `HypCluster`).

    Args:
        base: the algorithm that trains the K models.
        candidates: the number of randomly drawn clients that train.
    """

    base: Algorithm
    candidates: int

    def start_plan(self, state: State, cohort: Cohort) -> RoundPlan:
        order = torch.randperm(len(cohort), generator=cohort.stream("candidates").generator())
        trains = torch.zeros(len(cohort), dtype=torch.bool)
        trains[order[: self.candidates]] = True
        plan = FedAvg().plan(state, cohort)
        weights = averaging_weights(plan.assignment, cohort.sizes * trains, len(state.models))
        kept = replace(plan.trainings[0], weights=weights, keep=lambda update: update, participates=trains)
        return replace(plan, trainings=(kept,))

    def start_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate, *, last: bool) -> State:
        ((update,), (training,)) = aggregate.kept, plan.trainings
        assert update is not None
        candidates = torch.nonzero(training.participants()).flatten()
        ends = state.models[0] + update.to(state.models)[candidates]

        def losses(candidate: int) -> Tensor:
            return cohort.losses(ends[candidate][None])[candidates, 0]

        first = torch.randint(len(candidates), (1,), generator=cohort.stream("farthest-first").generator())
        taken = farthest_first(losses, int(first), min(len(state.models), len(candidates)))
        models, trained = state.models.clone(), torch.zeros_like(state.trained)
        models[: len(taken)] = ends[taken]
        # Each model has learnt from one client alone.
        trained[cohort.clients[candidates[taken]], torch.arange(len(taken))] = cohort.round
        return replace(state, models=models, trained=trained)


def farthest_first(losses: Callable[[int], Tensor], first: int, count: int) -> list[int]:
    """Select ``count`` candidates; each further candidate has the highest minimum loss over the selected models.

    Args:
        losses: a function from a candidate to the losses (m,) of its model on the examples of all m candidates.
        first: the index of the first selected candidate.
        count: the number of candidates to select, at most m.

    >>> distance = torch.tensor([[0.0, 1.0, 5.0], [1.0, 0.0, 4.0], [5.0, 4.0, 0.0]])
    >>> farthest_first(lambda candidate: distance[candidate], 0, 3)
    [0, 2, 1]
    """
    taken = [first]
    lowest = losses(first).clone()
    while len(taken) < count:
        # A model may be worse for its own client than for others, so a candidate could be taken twice.
        lowest[taken] = -torch.inf
        taken.append(int(lowest.argmax()))
        lowest = torch.minimum(lowest, losses(taken[-1]))
    return taken
