"""Grouping by a known column: one model for each sector, region or device, and no choice that could leak."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrapper import Derived
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation
from shoal.engine import Cohort, Deployed, Engine, LocalSGD, RoundPlan, State


@settings
class ByGroup(Derived):
    """The clients of each group of the federation train one model, and the server averages it.

    This is the common practice where a column names the groups. Clients choose nothing, so an assignment tells nothing
    of their examples that the group did not. All models start as FedAvg's, so with one group it is FedAvg, bit for bit.

    Args:
        weighting: of clients in a group: by "examples", as FedAvg, or "equal".

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> clients, groups = [one, one, other], ["north", "north", "south"]
        >>> test = shoal.Examples([[-1.0], [1.0]], [0, 0], ["north", "south"])
        >>> federation = shoal.Federation.from_tensors(clients, test=test, groups=groups)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> result = shoal.simulate(federation, model, shoal.ByGroup(), shoal.LocalSGD(), rounds=3)
        >>> result.clients["cluster"].tolist()
        [0, 0, 1]
    """

    weighting: Literal["examples", "equal"] = "examples"
    name: Literal["by-group"] = "by-group"
    title: ClassVar[str] = "One model per group"
    trains_clusters_alone: ClassVar[bool] = True

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """One random model for each group that has clients."""
        require(
            not federation.row_groups,
            "algorithm 'by-group' needs groups of clients, and clients have examples of several; name another column",
        )
        present, cluster = torch.unique(federation.group, return_inverse=True)
        model = engine.model.init(stream("model", 0))
        state = State.initial(model.expand(len(present), -1).clone(), len(federation))
        return replace(state, clients={_GROUP: cluster})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Each client trains the model of its group."""
        return IFCA(weighting=self.weighting).plan_of(state.clients[_GROUP][cohort.clients], None, state, cohort)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """Each client uses the model of its group."""
        group = state.clients[_GROUP][cohort.clients]
        return Deployed(state.models, group, group)


_GROUP = "by-group.group"
