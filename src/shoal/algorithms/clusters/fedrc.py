"""FedRC: FedEM in which labels that are frequent in a cluster speak less for it, so that clusters form by concept."""

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
"""The least sum of responsibilities of a label, as in the authors' code."""


@settings
class FedRC(FedEM):
    """FedEM, but ``q_sm`` is in proportion to ``pi_im exp(-loss_sm) / P_m(y_s)``, where y_s is the example's label.

    P_m(y) is the share of label y in cluster m: the sum of q_sm over the examples of label y, of the clients of the
    last round, divided by the sum over all their examples. A model that has seen more examples of a label has a lower
    loss on it, whatever the inputs. The division removes that advantage, so clusters form by concept: how labels follow
    from inputs. Before the first round the shares are equal, so that round is FedEM's.

    Each client sends its sums of q by label without protection, so the server learns how many examples of each label it
    has. The rest is as in FedEM. Labels must be classes. Only the code was read, not the paper's formulas.

    Args:
        clusters: M, the components of the mixture (the authors' command: 3).

    Source: Guo, Tang, Lin 2023, arXiv:2301.12379, the algorithm FedRC: its expectation step and label shares as in the
    authors' code (LINs-lab/FedRC).

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
        """FedEM's state, with equal shares (M, C) of all labels.

        Raises:
            InputError: labels are no classes.
        """
        require(federation.classes is not None, "FedRC needs labels that are classes; a regression has none")
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
        """The q (m, M) of FedEM for losses plus the logarithms of their labels' shares."""
        return super().responsibilities(losses + state.server[_SHARES].log()[:, cohort.labels].T, state, cohort)


_SHARES = "fedrc.label_shares"
