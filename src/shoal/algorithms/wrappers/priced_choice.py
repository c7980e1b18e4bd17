"""Priced choice: the server puts a price on exposed models, which clients add to the loss when they choose.

Ours. In IFCA-MIR a client weighs a model's risk as its owner prefers; here the server says how much a model's loss
counts for more, in nats, whatever the client's preferences.
"""

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrapper import with_bases
from shoal.algorithms.wrappers.changed_losses import ChangedLosses
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data.federation import Federation
from shoal.engine import Aggregate, Algorithm, Cohort, Deployed, Engine, LocalSGD, RoundPlan, State

_Price = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@settings
class PricedChoice:
    """Clients of ``base`` choose by ``loss_ik + price_k``, in training and after it.

    The directive "price", in nats, is the price of each cluster's model; without it ``prices`` are. With prices of 0
    it is ``base``, bit for bit, and so it is over an algorithm in which clients do not choose, such as FedAvg. IFCA-MIR
    weighs the price as it weighs the loss: by alpha. The recorded losses are without the price.

    Args:
        base: in which clients choose by their losses.
        prices: of the K models, in nats, where the server does not set them; left out: 0 for all.

    Source: ours.

    Example:
        >>> import shoal
        >>> one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])  # labels swapped
        >>> federation = shoal.Federation.from_tensors([one, one, other, other], test=one)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=5, learning_rate=1.0)
        >>> for prices in ((0.0, 0.0), (5.0, 0.0)):
        ...     algorithm = shoal.PricedChoice(shoal.IFCA(clusters=2), prices=prices)
        ...     result = shoal.simulate(federation, model, algorithm, local, rounds=3)
        ...     print(prices, result.clients["cluster"].tolist())
        ...
        (0.0, 0.0) [0, 0, 1, 1]
        (5.0, 0.0) [1, 1, 1, 1]
    """

    base: Algorithm = IFCA()
    prices: tuple[_Price, ...] = ()
    name: Literal["priced-choice"] = "priced-choice"
    title: ClassVar[str] = "Priced choice"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """There must be as many prices as the base says it has clusters."""
        clusters = _clusters(self.base)
        if clusters is not None:
            self._check_prices(clusters)
        self.base.check(local, risk_period)

    def init(self, engine: Engine, federation: Federation, local: LocalSGD, stream: Stream) -> State:
        """See the base's.

        Raises:
            InputError: there are not as many prices as models.
        """
        state = self.base.init(engine, federation, local, stream)
        self._prices(state)
        return state

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The base's plan for clients that see priced losses."""
        prices = self._prices(state)
        if not bool(prices.any()):
            return self.base.plan(state, cohort)
        priced = _priced(cohort, prices)
        plan = self.base.plan(state, priced.cohort)
        return replace(plan, losses=priced.recorded(plan.losses))

    def server_update(self, state: State, cohort: Cohort, plan: RoundPlan, aggregate: Aggregate) -> State:
        """See the base's."""
        return self.base.server_update(state, cohort, plan, aggregate)

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """What clients of the base use that see priced losses."""
        prices = self._prices(state)
        return self.base.deployed(state, _priced(cohort, prices).cohort if bool(prices.any()) else cohort)

    def _prices(self, state: State) -> Tensor:
        """(K,) float64, in nats."""
        clusters, directive = len(state.models), state.directives.get("price")
        if directive is not None:
            require(
                directive.shape == (clusters,) and bool(torch.isfinite(directive).all()),
                f"the directive 'price' must be a finite number of nats for each of {clusters} clusters; "
                f"got {directive.tolist()}",
            )
            return directive.double()
        self._check_prices(clusters)
        return torch.tensor(self.prices or [0.0] * clusters, dtype=torch.float64)

    def _check_prices(self, clusters: int) -> None:
        require(
            len(self.prices) in (0, clusters),
            f"'prices' must be one number for each of {clusters} models, or left out; got {len(self.prices)}",
        )


def _clusters(algorithm: object) -> int | None:
    """K where an algorithm, or one that it wraps, states it; None: it is known when there are models."""
    for wrapped in with_bases(algorithm):
        for each in (wrapped, getattr(wrapped, "ifca", None)):
            found = getattr(each, "clusters", None)
            if isinstance(found, int):
                return found
    return None


def _priced(cohort: Cohort, prices: Tensor) -> ChangedLosses:
    """The cohort whose losses of the K models have the ``prices`` (K,) on top."""
    return ChangedLosses(cohort, len(prices), lambda losses, _: losses + prices)
