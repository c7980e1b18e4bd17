"""FedRC: FedEM in which labels that are frequent in a cluster speak less for it, so that clusters form by concept.

Source: Guo, Tang, Lin 2023, arXiv:2301.12379, and the authors' code (LINs-lab/FedRC), whose expectation step and label
shares these are.
"""

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.fedem import FedEM, trained_responsibilities
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Positive, settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Cohort, Deployed, Engine, LocalSGD, RoundPlan, State

_LEAST = 1e-8
"""The least sum of responsibilities of a label, as in the authors' code."""


@settings
class FedRC:
    """FedEM, but ``q_sm`` is in proportion to ``pi_im exp(-loss_sm) / P_m(y_s)``, where y_s is the example's label.

    P_m(y) is the share of label y in cluster m: the sum of q_sm over the examples of label y, of the clients of the
    last round, divided by the sum over all their examples. A model that has seen more of some labels than another has a
    lower loss on them, whatever their inputs; divided by P_m, that counts no more, and what counts is by which concept
    labels follow from inputs. Before the first round the shares are equal, so that round is FedEM's.

    Each client sends its sums of q by label, and so tells the server how many examples of each label it has; here
    nothing protects them. Everything else, what is deployed too, is as in FedEM. Labels must be classes. The paper's
    formulas were not read, only the code.

    Args:
        clusters: M, the components of the mixture (the authors' command: 3).

    Source: Guo, Tang, Lin 2023, arXiv:2301.12379, and the authors' code (LINs-lab/FedRC), whose expectation step and
    label shares these are.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=5, learning_rate=1.0)
        >>> result = shoal.simulate(federation, model, shoal.FedRC(clusters=2), local, rounds=5)
        >>> result.clients["cluster"].tolist(), result.clients["train_accuracy"].tolist()
        ([0, 0, 1, 1], [1.0, 1.0, 1.0, 1.0])
    """

    clusters: Positive = 3
    name: Literal["fedrc"] = "fedrc"
    title: ClassVar[str] = "FedRC"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """See `FedEM.check`."""
        self._fedem.check(local, risk_period)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """FedEM's state, with equal shares (M, C) of all labels.

        Raises:
            InputError: labels are no classes.
        """
        require(federation.classes is not None, "FedRC needs labels that are classes; a regression has none")
        assert federation.classes is not None
        state = self._fedem.init(engine, federation, local, stream)
        equal = torch.full((self.clusters, federation.classes), 1 / federation.classes, dtype=torch.float64)
        return replace(state, server={_SHARES: equal})

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """FedEM's plan by these responsibilities."""
        losses = cohort.example_losses(state.models)
        plan = self._fedem.plan_by(self._by_concept(losses, state, cohort), state, cohort)
        return replace(plan, losses=cohort.means(losses))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """FedEM's update; and the shares of labels are those of this round."""
        after = self._fedem.server_update(state, cohort, plan, aggregate)
        q = trained_responsibilities(plan).double()
        total = torch.zeros_like(state.server[_SHARES].T).index_add_(0, cohort.labels, q).clamp(min=_LEAST)
        return replace(after, server={**after.server, _SHARES: (total / total.sum(dim=0)).T})

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """See `FedEM.deployed`."""
        losses = cohort.example_losses(state.models)
        return self._fedem.deployed_by(self._by_concept(losses, state, cohort), state, cohort)

    def _by_concept(self, losses: Tensor, state: State, cohort: Cohort) -> Tensor:
        """(m, M), the losses of the examples plus the logarithms of their labels' shares."""
        return losses + state.server[_SHARES].log()[:, cohort.labels].T

    @property
    def _fedem(self) -> FedEM:
        return FedEM(self.clusters)


_SHARES = "fedrc.label_shares"
