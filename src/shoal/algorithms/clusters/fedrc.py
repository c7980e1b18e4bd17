"""FedRC: FedEM with a correction for label frequencies."""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.fedem import FedEM, plan_responsibilities
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Cohort, Engine, LocalSGD, RoundPlan, State

_MIN_SUM = 1e-8
"""The lower bound on the sum of a label's responsibilities, as in the authors' code."""


@settings
class FedRC(FedEM):
    """FedEM with responsibilities proportional to ``pi_im exp(-loss_sm) / P_m(y_s)``, where ``y_s`` is the example's
    label.

    ``P_m(y)`` is the fraction of label y in cluster m in the last round, with examples weighted by responsibility. A
    model that was trained on more examples of a label has a lower loss on that label for any input. The division by
    ``P_m(y)`` removes this advantage, so clusters reflect how labels depend on inputs.

    Each client sends its sum of responsibilities per label without noise, so the server learns how many examples of
    each label a client has.

    Args:
        clusters: M, the number of models in the mixture (3 in the authors' command line).

    Source: Guo et al. 2023, arXiv:2301.12379. The formulas follow the authors' code (LINs-lab/FedRC), not the paper's
    text.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> result = shoal.simulate(federation, model, shoal.FedRC(clusters=2), local, rounds=5)
        >>> result.clients["cluster"].tolist(), result.clients["train_accuracy"].tolist()
        ([0, 0, 1, 1], [1.0, 1.0, 1.0, 1.0])
    """

    name: Literal["fedrc"] = "fedrc"  # pyright: ignore[reportIncompatibleVariableOverride]
    title: ClassVar[str] = "FedRC"

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """Create the initial state; raise `InputError` if the labels are not classes."""
        require(
            federation.classes is not None,
            "FedRC needs labels that are classes (got a regression)",
        )
        assert federation.classes is not None
        state = super().init(engine, federation, local, stream)
        equal = torch.full((self.clusters, federation.classes), 1 / federation.classes, dtype=torch.float64)
        return replace(state, server={_SHARES: equal})

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        after = super().server_update(state, cohort, plan, aggregate)
        q = plan_responsibilities(plan).double()
        total = torch.zeros_like(state.server[_SHARES].T).index_add_(0, cohort.labels, q).clamp(min=_MIN_SUM)
        return replace(after, server={**after.server, _SHARES: (total / total.sum(dim=0)).T})

    def responsibilities(self, losses: Tensor, state: State, cohort: Cohort) -> Tensor:
        return super().responsibilities(losses + state.server[_SHARES].log()[:, cohort.labels].T, state, cohort)


_SHARES = "fedrc.label_shares"
