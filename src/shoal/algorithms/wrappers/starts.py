"""A start that finds groups: k-means of models that clients trained by themselves, then an algorithm with clusters.

Ours as a start of IFCA; the grouping is that of `OneShotClustering` (Ghosh et al. 2019, arXiv:1906.06629).
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.clusters.one_shot import first_plan, grouped, require_counted
from shoal.algorithms.wrapper import require_no_first_round
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Algorithm, Cohort, Deployed, Engine, LocalSGD, RoundPlan, State


@settings
class OneShotStart:
    """In the first round that has clients, each trains the first model of ``base`` by itself; the means of the K
    clusters that k-means finds in the results are the models with which ``base`` goes on.

    The server keeps all n updates of that round until it ends. Where fewer clients than K take part, the remaining
    models stay the base's. Wrap other wrappers inside: around this one they see the means as an update.

    Args:
        base: goes on with the K models, as many as it has clusters.
        local: local training of the first round; left out: as in all others. It must be long enough for clients'
            models to differ by group.

    Source: ours as a start; the grouping is that of Ghosh et al. 2019, arXiv:1906.06629.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=5, learning_rate=1.0)
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
        """See the base's, `require_counted`, and `require_no_first_round`."""
        require_counted(self.local, local)
        require_no_first_round(self)
        self.base.check(local, risk_period)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """The base's state, which has not started."""
        state = self.base.init(engine, federation, local, stream)
        return replace(state, server={**state.server, _STARTED: torch.zeros(1, dtype=torch.int64)})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Everybody trains the first model by itself; later the base's plan."""
        if not bool(state.server[_STARTED]):
            return first_plan(state, cohort, self.local)
        return self.base.plan(state, cohort)

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """The models become the clusters' means; later the base's update."""
        if bool(state.server[_STARTED]):
            after = self.base.server_update(state, cohort, plan, aggregate)
            return replace(after, server={**after.server, _STARTED: state.server[_STARTED]})
        (update,) = aggregate.kept
        assert update is not None
        begun, _ = grouped(state, cohort, update)
        return replace(begun, server={**state.server, _STARTED: torch.ones(1, dtype=torch.int64)})

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """See the base's."""
        return self.base.deployed(state, cohort)


_STARTED = "one_shot_start.started"
