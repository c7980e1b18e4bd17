"""Rules of choice: clients choose a model by other losses than those that they minimise."""

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from shoal.algorithms.clusters.hypcluster import HypCluster
from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrapper import Derived, Wrapper, with_bases
from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.settings import Inline, settings
from shoal.data.preferences import Preferences
from shoal.engine import Algorithm, Cohort, Deployed, LocalSGD, RemoteRounds, RoundPlan, State, remote_rounds


class ChoiceRule(Derived):
    """Clients of `inner` choose by `perceived` losses, in training and after it.

    Every loss of the K models that `inner` asks for is replaced: clients' mean losses, as IFCA's, and losses of single
    examples, as FedSoft's importances and FedEM's responsibilities. What training minimises, and the losses that are
    recorded, stay the true ones. Losses of another number of models, such as a personal one, stay as well.
    """

    title: ClassVar[str]
    by_risk: ClassVar[bool] = True
    """Whether `perceived` reads the risks, which must then be estimated."""

    @abstractmethod
    def perceived(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        """Losses by which clients choose (r, K), from the true ``losses`` (r, K) and the preferences (r,) of each."""

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Raise `InputError` where `inner` does, or where risks are not estimated."""
        require(
            risk_period > 0 or not self.by_risk,
            f"{self.title} chooses by risk, so the red team's 'every' must be at least 1; got 0",
        )
        super().check(local, risk_period)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """The plan of `inner` for clients with perceived losses."""
        perceiving = _Perceiving(self, state, cohort)
        plan = self.inner.plan(state, perceiving.cohort)
        return replace(plan, losses=perceiving.true(plan.losses))

    def deployed(self, state: State, cohort: Cohort) -> Deployed:
        """The models of `inner` for clients with perceived losses."""
        return self.inner.deployed(state, _Perceiving(self, state, cohort).cohort)

    def remote_rounds(self) -> RemoteRounds:
        """Clients choose by perceived losses; the server is told their choices, and runs `inner` alone."""
        inner = remote_rounds(self.inner)
        require(inner.choice == "client", "a rule of choice runs on several machines where clients choose a model")
        if not isinstance(self, Wrapper):
            return replace(inner, client=self)
        return replace(inner, client=replace(self, base=inner.client))  # pyright: ignore[reportArgumentType]


class _Perceiving:
    """A ``cohort`` with perceived losses, and the true losses in the place of those that a plan records."""

    def __init__(self, rule: ChoiceRule, state: State, cohort: Cohort) -> None:
        self._rule, self._state, self._cohort = rule, state, cohort
        self._scored, self._example_scored = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
        self.cohort = replace(cohort, scores=self._scores, example_scores=self._example_scores)

    def true(self, losses: Tensor | None) -> Tensor | None:
        """The true losses (n, K) of perceived ones; any others as they are."""
        for true, perceived in self._scored:
            if perceived is losses:
                return true
        for true, perceived in self._example_scored:
            if losses is not None and torch.equal(self._cohort.means(perceived), losses):
                return self._cohort.means(true)
        return losses

    def _scores(self, models: Tensor, examples: Literal["all", "batch"]) -> Tensor:
        return self._perceived(self._cohort.scores(models, examples), self._cohort.preferences, self._scored)

    def _example_scores(self, models: Tensor) -> Tensor:
        preferences = self._cohort.preferences.take(self._cohort.owners)
        return self._perceived(self._cohort.example_scores(models), preferences, self._example_scored)

    def _perceived(self, losses: Tensor, preferences: Preferences, scored: list[tuple[Tensor, Tensor]]) -> Tensor:
        if losses.shape[1] != len(self._state.models):
            return losses
        scored.append((losses, self._rule.perceived(losses, self._state, preferences)))
        return scored[-1][1]


def _weighed(losses: Tensor, state: State, preferences: Preferences) -> Tensor:
    """(r, K), ``alpha_i * loss_ik + beta_i * risk_k``."""
    return preferences.alpha[:, None] * losses + preferences.beta[:, None] * state.risks


@settings
class _ChoiceOverIFCA(ChoiceRule):
    """A rule of choice over IFCA, whose keys stand beside its own.

    Args:
        ifca: initial models, averaging, and the examples on which clients score the models.
    """

    ifca: Annotated[IFCA, Inline()] = IFCA()

    @property
    def inner(self) -> IFCA:
        """IFCA."""
        return self.ifca

    @property
    def fixed_clients(self) -> str:
        """IFCA's."""
        return self.ifca.fixed_clients

    @property
    def trains_clusters_alone(self) -> bool:
        """IFCA's."""
        return self.ifca.trains_clusters_alone


@settings
class IFCAMIR(_ChoiceOverIFCA):
    """Client i trains the model of least ``alpha_i * loss_ik + beta_i * risk_k``.

    The loss is in nats and the risk a probability in [0.5, 1], estimated by the red team (Algorithm 2) and sent with
    the models; the paper adds them as they are. With beta = 0 for every client it is IFCA, bit for bit.

    Source: Jung, Biswas, Palamidessi, "Mitigating Membership Inference Vulnerability in Personalized Federated
    Learning", Algorithm 1, line 12.

    Example:
        >>> import shoal.toy
        >>> red_team = shoal.RedTeam(every=1, estimator="audit", attack=shoal.Gap())
        >>> for beta in (0.0, 1.0):
        ...     federation, model, _ = shoal.toy.two_groups(beta=beta)
        ...     algorithm = shoal.IFCAMIR(shoal.IFCA(clusters=2))
        ...     result = shoal.simulate(federation, model, algorithm, shoal.LocalSGD(), rounds=3, red_team=red_team)
        ...     print(beta, result.clients["cluster"].tolist())
        ...
        0.0 [0, 0, 1, 1]
        1.0 [0, 0, 0, 0]
    """

    name: Literal["ifca-mir"] = "ifca-mir"
    title: ClassVar[str] = "IFCA-MIR"

    def perceived(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        """Loss and risk, weighed by each client's preferences."""
        return _weighed(losses, state, preferences)


@settings
class IFCAWithinLimit(_ChoiceOverIFCA):
    """Client i trains the model of least loss among those with ``risk_k <= threshold_i``.

    If there is none, it trains the model of least risk, and of several with that risk the one of least loss. Such
    clients are still beyond their limits, and reports count them. With thresholds of 1 for every client it is IFCA, bit
    for bit. The preference beta is not used.

    Source: ours, by the thresholds with which Jung, Biswas, Palamidessi (IFCA-MIR) judge a choice.

    Example:
        >>> import shoal.toy
        >>> red_team = shoal.RedTeam(every=1, estimator="audit", attack=shoal.Gap())
        >>> for threshold in (1.0, 0.5):
        ...     federation, model, _ = shoal.toy.two_groups(threshold=threshold)
        ...     algorithm = shoal.IFCAWithinLimit(shoal.IFCA(clusters=2))
        ...     result = shoal.simulate(federation, model, algorithm, shoal.LocalSGD(), rounds=3, red_team=red_team)
        ...     print(threshold, result.clients["cluster"].tolist())
        ...
        1.0 [0, 0, 1, 1]
        0.5 [0, 0, 0, 0]
    """

    name: Literal["ifca-within-limit"] = "ifca-within-limit"
    title: ClassVar[str] = "IFCA within limits"

    def perceived(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        """The losses of allowed models; infinity for the others."""
        within = state.risks <= preferences.threshold[:, None]
        least = state.risks == state.risks.min()
        allowed = torch.where(within.any(dim=1, keepdim=True), within, least)
        return losses.masked_fill(~allowed, torch.inf)


@settings
class RiskAwareChoice(Wrapper, ChoiceRule):
    """IFCA-MIR's rule over any algorithm: clients of ``base`` choose by ``alpha_i * loss_ik + beta_i * risk_k``.

    Over HypCluster a client trains the model of least loss and risk. Over FedSoft each example counts for that model.
    Over FedEM responsibilities are in proportion to ``pi_ik exp(-(alpha_i * loss + beta_i * risk_k))``, and over FedRC
    that over P_k(y). Over IFCA it is IFCA-MIR. With beta = 0 for every client, or over an algorithm in which clients do
    not choose, such as FedAvg, it is ``base``, bit for bit.

    In a mixture a risk that is 0.2 higher multiplies a model's odds by at least exp(-0.2) = 0.82; in a choice of one
    model it decides wherever losses are close.

    Args:
        base: an algorithm in which clients choose by their losses.

    Source: Algorithm 1, line 12 of Jung, Biswas, Palamidessi (IFCA-MIR), for IFCA; over others it is ours.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> red_team = shoal.RedTeam(every=1, estimator="audit", attack=shoal.Gap())
        >>> algorithms = shoal.IFCAMIR(shoal.IFCA(clusters=2)), shoal.RiskAwareChoice(shoal.IFCA(clusters=2))
        >>> a, b = (shoal.simulate(federation, model, rule, local, rounds=2, red_team=red_team) for rule in algorithms)
        >>> a.state.models.equal(b.state.models)
        True
    """

    base: Algorithm = HypCluster()
    name: Literal["risk-aware-choice"] = "risk-aware-choice"
    title: ClassVar[str] = "Risk-aware choice"

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """Risks must be estimated, and not be weighed already."""
        for base in with_bases(self.base):
            require(
                not isinstance(base, IFCAMIR | RiskAwareChoice),
                f"{type(base).__name__} weighs risk already, so it cannot be the 'base' of risk-aware choice; "
                "use IFCA, HypCluster, FedSoft, FedEM or FedRC",
            )
        super().check(local, risk_period)

    def perceived(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        """Loss and risk, weighed by each client's preferences."""
        return _weighed(losses, state, preferences)


_Price = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@settings
class PricedChoice(Wrapper, ChoiceRule):
    """Clients of ``base`` choose by ``loss_ik + price_k``: the server prices models, whatever clients prefer.

    The directive "price", in nats, sets the price of each cluster's model; without it ``prices`` do. With prices of 0,
    or over an algorithm in which clients do not choose, such as FedAvg, it is ``base``, bit for bit. IFCA-MIR weighs
    the price as it weighs the loss: by alpha.

    Args:
        base: an algorithm in which clients choose by their losses.
        prices: of the K models, in nats, where the server does not set them; left out: 0 for all.

    Source: ours.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
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
    by_risk: ClassVar[bool] = False

    def check(self, local: LocalSGD, risk_period: int) -> None:
        """There must be as many prices as the base says it has clusters."""
        inner: object = self.base
        while inner is not None and not isinstance(getattr(inner, "clusters", None), int):
            inner = getattr(inner, "inner", None)
        if inner is not None:
            self._prices(getattr(inner, "clusters"))  # noqa: B009 - only known at run time
        super().check(local, risk_period)

    def begun(self, state: State, layout: Layout) -> State:
        """The state of the base.

        Raises:
            InputError: the numbers of prices and models differ.
        """
        self._prices(len(state.models))
        return state

    def perceived(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        """Losses plus prices."""
        clusters, directive = len(state.models), state.directives.get("price")
        if directive is None:
            return losses + self._prices(clusters)
        require(
            directive.shape == (clusters,) and bool(torch.isfinite(directive).all()),
            f"the directive 'price' must be a finite number of nats for each of {clusters} clusters; "
            f"got {directive.tolist()}",
        )
        return losses + directive.double()

    def _prices(self, clusters: int) -> Tensor:
        """(K,) float64, those of the settings."""
        require(
            len(self.prices) in (0, clusters),
            f"'prices' must be one number for each of {clusters} models, or left out; got {len(self.prices)}",
        )
        return torch.tensor(self.prices or [0.0] * clusters, dtype=torch.float64)
