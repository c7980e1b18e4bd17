"""A start that finds groups: one model of all clients first, then noisy copies of it for an algorithm with clusters.

Ours. IFCA needs initial models that are near the groups' own (Ghosh et al. 2020, arXiv:2006.04088, Theorem 1), and
independent random models of groups that overlap often end in one cluster for all. IFCA's official code begins FEMNIST
in a similar way: all clusters have the layers of one model trained by FedAvg, and a random last layer each.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.one_model.fedavg import FedAvg
from shoal.algorithms.wrapper import require_no_first_round
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, PositiveFloat, settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Algorithm, Cohort, Deployed, Engine, LocalSGD, RoundPlan, State, averaging_weights


@settings
class FedAvgStart:
    """FedAvg trains the first model of ``base`` for some rounds; then ``model_k = model + noise_k`` for all K.

    The noise of a parameter is Gaussian with standard deviation ``noise * rms``, the root mean square of the values in
    its tensor, and independent for each model; batch norm's statistics get none. From then on ``base`` trains the
    copies, and until then its other models and its own tensors stay as it began. Rounds without clients do not count.
    Copies hold what all clients taught the one model, and so those clients count as members of each copy, as long as
    clients do that trained a model once. Wrap other wrappers inside: around this one they see the copies as an update.

    Args:
        base: trains the copies, as many as it has clusters.
        fedavg_rounds: rounds in which every client trains the one model.
        noise: standard deviation of the noise, in units of the root mean square of a tensor's values.

    Source: ours; why it is needed, Ghosh et al. 2020, arXiv:2006.04088, Theorem 1.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=5, learning_rate=1.0)
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

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """The base must not train otherwise in a first round of its own, which would come later here."""
        require_no_first_round(self)
        self.base.check(local, risk_period)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """The base's state, and how many rounds of FedAvg are left."""
        state = self.base.init(engine, federation, local, stream)
        return replace(state, server={**state.server, _LEFT: torch.tensor([self.fedavg_rounds])})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains the one model; later the base's plan."""
        if not bool(state.server[_LEFT]):
            return self.base.plan(state, cohort)
        plan = FedAvg().plan(state, cohort)
        weights = averaging_weights(plan.assignment, cohort.sizes, len(state.models))
        return replace(plan, trainings=tuple(replace(each, weights=weights) for each in plan.trainings))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The average is the one model, and after the last of these rounds all are copies; later the base's update."""
        left = state.server[_LEFT]
        if not bool(left):
            after = self.base.server_update(state, cohort, plan, aggregate)
            return replace(after, server={**after.server, _LEFT: left})
        after = replace(state, models=aggregate.models, server={**state.server, _LEFT: left - 1})
        if int(left) > 1:
            return after
        models = noisy_copies(aggregate.models[0], len(state.models), self.noise, cohort.layout, cohort.stream)
        return replace(after, models=models, trained=state.trained[:, :1].expand_as(state.trained).clone())

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Everybody uses the one model; later see the base's."""
        if not bool(state.server[_LEFT]):
            return self.base.deployed(state, cohort)
        return FedAvg().deployed(state, cohort)


_LEFT = "fedavg_start.left"


def noisy_copies(model: Tensor, count: int, noise: float, layout: Layout, stream: Stream) -> Tensor:
    """(count, P): ``model`` (P,) with Gaussian noise, of ``noise`` times the root mean square of each tensor."""
    scale = torch.zeros_like(model)
    for slot in layout.slots:
        where = slice(slot.start, slot.start + slot.size)
        if slot.start < layout.trainable:
            scale[where] = model[where].square().mean().sqrt()
    draws = [torch.randn(len(model), generator=stream("copy", k).generator()) for k in range(count)]
    return model + noise * scale * torch.stack(draws).to(model)
