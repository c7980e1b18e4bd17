"""The risk that records certainly have by the rule of exposure, cluster by cluster while a simulation trains."""

from dataclasses import dataclass
from functools import cached_property
from math import ceil, nan
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.audit.records import CLIENT, SERVER
from shoal.engine import State
from shoal.simulation.preflight.visible_moves import VisibleMoves

if TYPE_CHECKING:
    from shoal.simulation.simulation import Simulation


@dataclass(frozen=True, eq=False)
class RecognisedRisks:
    """The risk that records certainly have by the rule of exposure, which no red team's queries show.

    It is the risk of a cluster as it is now, over all rounds of the simulation. An attack that recognises records is
    taken to have a balanced accuracy of the least AUC that the rule then predicts.

    Args:
        simulation: with the view of its figures, and those that clients' limits name.
    """

    simulation: "Simulation"

    def __call__(self, state: State) -> Tensor:
        """(N,) float64 of each client's model to the attacker of its limit; NaN where the rule recognises nothing."""
        federation, assignment = self.simulation.federation, state.assignment
        sizes = federation.clients.sizes
        views = federation.preferences.views(self.simulation.view)
        risks = torch.full((len(federation),), torch.nan, dtype=torch.float64)
        members = torch.bincount(assignment[assignment >= 0], minlength=len(state.models))
        # A client sees sums over its cluster, the server each client alone.
        mean = [ceil(float(sizes[assignment == k].double().mean())) if n else 0 for k, n in enumerate(members.tolist())]
        for i, (view, k, size) in enumerate(zip(views, assignment.tolist(), sizes.tolist(), strict=True)):
            if view == CLIENT and k >= 0 and mean[k]:
                risks[i] = self._least(view, mean[k], int(members[k]))
            elif view == SERVER and k >= 0 and size:
                risks[i] = self._least(view, size, 1)
        return risks

    def _least(self, view: str, size: int, clients: int) -> float:
        if (view, size, clients) not in self._known:
            exposure = self._seen.most(self._seen.moves(view, size, clients)) if self._seen.layers else None
            recognised = exposure is not None and exposure.verdict == "recognised"
            self._known[view, size, clients] = exposure.auc[0] if exposure is not None and recognised else nan
        return self._known[view, size, clients]

    @cached_property
    def _seen(self) -> VisibleMoves:
        return VisibleMoves(self.simulation)

    @cached_property
    def _known(self) -> dict[tuple[str, int, int], float]:
        return {}
