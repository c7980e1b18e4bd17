"""Rules of choice: clients choose a model by other losses than training minimises."""

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
from shoal.engine import Algorithm, Cohort, DeployedModels, LocalSGD, RemoteRounds, RoundPlan, State, remote_rounds


class ChoiceRule(Derived):
    """An algorithm whose clients choose by the losses of `perceive_losses`, in training and after it.

    Every loss of the K models that `inner` asks for is replaced: clients' mean losses, as in IFCA, and losses of single
    examples, as in FedSoft and FedEM. Training still minimises the true losses, and they are recorded. Losses of other
    models, such as a personal model, do not change.
    """

    title: ClassVar[str]
    by_risk: ClassVar[bool] = True
    """Whether `perceive_losses` reads the risks, which must then be estimated."""

    @abstractmethod
    def perceive_losses(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        """Return the losses (r, K) for choosing, from the true ``losses`` (r, K) and clients' preferences (r,)."""

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require(
            risk_period > 0 or not self.by_risk,
            f"{self.title} chooses by risk, so the red team's 'every' must be at least 1; got 0",
        )
        super().check(local, risk_period)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        """Return the plan of `inner` for perceived losses; it records the true losses."""
        view = PerceivedCohort(self, state, cohort)
        plan = self.inner.plan(state, view.cohort)
        return replace(plan, losses=view.true_losses(plan.losses))

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        return self.inner.deployed_models(state, PerceivedCohort(self, state, cohort).cohort)

    def remote_rounds(self) -> RemoteRounds:
        inner = remote_rounds(self.inner)
        require(inner.choice == "client", "a rule of choice runs on several machines where clients choose a model")
        if not isinstance(self, Wrapper):
            return replace(inner, client=self)
        return replace(inner, client=replace(self, base=inner.client))  # pyright: ignore[reportArgumentType]


class PerceivedCohort:
    """A ``cohort`` with perceived losses, which remembers the true ones."""

    def __init__(self, rule: ChoiceRule, state: State, cohort: Cohort) -> None:
        self._rule, self._state, self._cohort = rule, state, cohort
        self._scored, self._example_scored = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
        self.cohort = replace(cohort, scores=self._scores, example_scores=self._example_scores)

    def true_losses(self, losses: Tensor | None) -> Tensor | None:
        """Return the true losses (n, K) for perceived ones; leave other losses as they are."""
        for true, perceived in self._scored:
            if perceived is losses:
                return true
        for true, perceived in self._example_scored:
            if losses is not None and torch.equal(self._cohort.means(perceived), losses):
                return self._cohort.means(true)
        return losses

    def _scores(self, models: Tensor, examples: Literal["all", "batch"]) -> Tensor:
        return self._perceive(self._cohort.scores(models, examples), self._cohort.preferences, self._scored)

    def _example_scores(self, models: Tensor) -> Tensor:
        preferences = self._cohort.preferences.take(self._cohort.owners)
        return self._perceive(self._cohort.example_scores(models), preferences, self._example_scored)

    def _perceive(self, losses: Tensor, preferences: Preferences, scored: list[tuple[Tensor, Tensor]]) -> Tensor:
        if losses.shape[1] != len(self._state.models):
            return losses
        scored.append((losses, self._rule.perceive_losses(losses, self._state, preferences)))
        return scored[-1][1]


def _weigh_risk(losses: Tensor, state: State, preferences: Preferences) -> Tensor:
    """Return ``alpha_i * loss_ik + beta_i * risk_k`` (r, K)."""
    return preferences.alpha[:, None] * losses + preferences.beta[:, None] * state.risks


@settings
class _ChoiceOverIFCA(ChoiceRule):
    """A rule of choice over IFCA; a configuration has IFCA's keys beside the rule's own."""

    ifca: Annotated[IFCA, Inline()] = IFCA()

    @property
    def inner(self) -> IFCA:
        return self.ifca

    @property
    def membership_barrier(self) -> str:
        return self.ifca.membership_barrier

    @property
    def trains_clusters_alone(self) -> bool:
        return self.ifca.trains_clusters_alone


@settings
class IFCAMIR(_ChoiceOverIFCA):
    """IFCA in which client i trains the model of least ``alpha_i * loss_ik + beta_i * risk_k``.

    The loss is in nats. The risk is a probability in [0.5, 1] that the red team estimates (Algorithm 2) and the server
    sends with the models. With beta = 0 for every client it is IFCA, bit for bit.

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

    def perceive_losses(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        return _weigh_risk(losses, state, preferences)


@settings
class IFCAWithinLimit(_ChoiceOverIFCA):
    """IFCA in which client i trains the model of least loss among those with ``risk_k <= threshold_i``.

    Without such a model it trains the model of least risk, with ties by loss; reports count it as above its limit. With
    thresholds of 1 for every client it is IFCA, bit for bit. The preference beta is not used.

    Source: ours, with the thresholds of Jung, Biswas, Palamidessi (IFCA-MIR).

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

    def perceive_losses(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        within = state.risks <= preferences.threshold[:, None]
        least = state.risks == state.risks.min()
        allowed = torch.where(within.any(dim=1, keepdim=True), within, least)
        return losses.masked_fill(~allowed, torch.inf)


@settings
class RiskAwareChoice(Wrapper, ChoiceRule):
    """IFCA-MIR's rule over any algorithm: clients of ``base`` choose by ``alpha_i * loss_ik + beta_i * risk_k``.

    Over HypCluster a client trains the model of least loss and risk. Over FedSoft each example counts for that model.
    Over FedEM responsibilities are in proportion to ``pi_ik exp(-(alpha_i * loss + beta_i * risk_k))``; over FedRC the
    same is divided by P_k(y). Over IFCA it is IFCA-MIR. With beta = 0 for every client, or if clients of ``base`` do
    not choose, it is ``base``, bit for bit.

    In a mixture a risk that is 0.2 higher multiplies a model's odds by at least exp(-0.2) = 0.82. In a choice of one
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
        for base in with_bases(self.base):
            require(
                not isinstance(base, IFCAMIR | RiskAwareChoice),
                f"{type(base).__name__} weighs risk already, so it cannot be the 'base' of risk-aware choice; "
                "use IFCA, HypCluster, FedSoft, FedEM or FedRC",
            )
        super().check(local, risk_period)

    def perceive_losses(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        return _weigh_risk(losses, state, preferences)


_Price = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@settings
class PricedChoice(Wrapper, ChoiceRule):
    """Choice by ``loss_ik + price_k`` among the models of ``base``, with prices that the server sets.

    The directive "price", in nats, sets the price of each cluster's model; without it ``prices`` do. With prices of 0,
    or if clients of ``base`` do not choose, it is ``base``, bit for bit. IFCA-MIR multiplies the price by alpha, as it
    does the loss.

    Args:
        base: an algorithm in which clients choose by their losses.
        prices: prices of the K models in nats without the directive; left out: 0.

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
        inner: object = self.base
        while inner is not None and not isinstance(getattr(inner, "clusters", None), int):
            inner = getattr(inner, "inner", None)
        if inner is not None:
            self._prices(getattr(inner, "clusters"))  # noqa: B009 - only known at run time
        super().check(local, risk_period)

    def add_tensors(self, state: State, layout: Layout) -> State:
        """Check the number of prices.

        Raises:
            InputError: the numbers of prices and models differ.
        """
        self._prices(len(state.models))
        return state

    def perceive_losses(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
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
        require(
            len(self.prices) in (0, clusters),
            f"'prices' must be one number for each of {clusters} models, or left out; got {len(self.prices)}",
        )
        return torch.tensor(self.prices or [0.0] * clusters, dtype=torch.float64)
