"""Algorithms whose clients choose a model by losses that include risks or prices."""

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
    """An algorithm whose clients choose models by the losses of `perceive_losses` instead of the true losses.

    Perceived losses replace the mean losses of clients, as in IFCA, and the losses of single examples, as in FedSoft
    and FedEM. Training and the round's record use the true losses. Losses of personal models do not change.
    """

    title: ClassVar[str]
    by_risk: ClassVar[bool] = True
    """Whether `perceive_losses` needs risk estimates."""

    @abstractmethod
    def perceive_losses(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        """Compute the perceived losses (r, K) from the true ``losses`` (r, K) and the clients' preferences (r,)."""

    def check(self, local: LocalSGD, risk_period: int) -> None:
        require(
            risk_period > 0 or not self.by_risk,
            f"'red_team.every' must be at least 1 with {self.title} (got 0)",
        )
        super().check(local, risk_period)

    def plan(self, state: State, cohort: Cohort) -> RoundPlan:
        view = PerceivedCohort(self, state, cohort)
        plan = self.inner.plan(state, view.cohort)
        return replace(plan, losses=view.true_losses(plan.losses))

    def deployed_models(self, state: State, cohort: Cohort) -> DeployedModels:
        return self.inner.deployed_models(state, PerceivedCohort(self, state, cohort).cohort)

    def remote_rounds(self) -> RemoteRounds:
        inner = remote_rounds(self.inner)
        require(
            inner.choice == "client",
            f"{self.title}'s 'base' must let clients choose a model, for training on several machines",
        )
        if not isinstance(self, Wrapper):
            return replace(inner, client=self)
        return replace(inner, client=replace(self, base=inner.client))  # pyright: ignore[reportArgumentType]


class PerceivedCohort:
    """A cohort with perceived losses, and the map from perceived to true losses."""

    def __init__(self, rule: ChoiceRule, state: State, cohort: Cohort) -> None:
        self._rule, self._state, self._cohort = rule, state, cohort
        self._scored, self._example_scored = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
        self.cohort = replace(cohort, scores=self._scores, example_scores=self._example_scores)

    def true_losses(self, losses: Tensor | None) -> Tensor | None:
        """Return the true losses (n, K) for perceived losses, and other losses unchanged."""
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
    """A choice rule for IFCA; its configuration also has IFCA's keys."""

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
    """IFCA in which client i trains the model with the smallest ``alpha_i * loss_ik + beta_i * risk_k``.

    ``loss_ik`` is the loss of model k in nats. ``risk_k`` is an attack accuracy in [0.5, 1] that the red team
    estimates. ``privacy.beta`` sets ``beta_i``, and ``alpha_i = 1 - beta_i``. With beta = 0 for every client the result
    equals that of `IFCA` bit for bit.

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
    """IFCA in which client i trains the model with the smallest loss among the models with ``risk_k <= threshold_i``.

    If no model is within the client's limit ``threshold_i``, the client trains the model with the smallest risk, and
    counts as above its limit. With limits of 1 for every client the result equals that of `IFCA` bit for bit.
    ``privacy.beta`` has no effect.

    Source: the limits are the thresholds of Jung, Biswas, Palamidessi (IFCA-MIR).

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
    """The choice rule of IFCA-MIR for any algorithm: clients of ``base`` choose by ``alpha_i * loss_ik + beta_i *
    risk_k``.

    With HypCluster, a client trains the model with the smallest sum. With FedSoft, each example counts for the model
    with the smallest sum. With FedEM and FedRC, the sum replaces the loss in the responsibilities. With IFCA, the
    result equals that of IFCA-MIR. With beta = 0 for every client, or if clients of ``base`` do not choose a model, the
    result equals that of ``base`` bit for bit.

    Args:
        base: an algorithm in which clients choose by their losses.

    Source: Jung, Biswas, Palamidessi (IFCA-MIR), Algorithm 1, line 12.

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
                f"RiskAwareChoice's 'base' must choose by losses alone (got {type(base).__name__}); use IFCA, "
                "HypCluster, FedSoft, FedEM or FedRC",
            )
        super().check(local, risk_period)

    def perceive_losses(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        return _weigh_risk(losses, state, preferences)


_Price = Annotated[float, Field(strict=True, allow_inf_nan=False)]


@settings
class PricedChoice(Wrapper, ChoiceRule):
    """Clients of ``base`` choose a model by ``loss_ik + price_k``, with prices that the server sets.

    A coordinator can replace ``prices`` by the directive "price", in nats per cluster. With prices of 0, or if clients
    of ``base`` do not choose a model, the result equals that of ``base`` bit for bit. If ``base`` is IFCA-MIR, the
    price is also multiplied by ``alpha_i``.

    Args:
        base: an algorithm in which clients choose by their losses.
        prices: the prices of the K models in nats; 0 by default.

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
        """Raise `InputError` if the number of prices differs from the number of models."""
        self._prices(len(state.models))
        return state

    def perceive_losses(self, losses: Tensor, state: State, preferences: Preferences) -> Tensor:
        clusters, directive = len(state.models), state.directives.get("price")
        if directive is None:
            return losses + self._prices(clusters)
        require(
            directive.shape == (clusters,) and bool(torch.isfinite(directive).all()),
            f"the directive 'price' must be {clusters} finite numbers, one per cluster (got {directive.tolist()})",
        )
        return losses + directive.double()

    def _prices(self, clusters: int) -> Tensor:
        require(
            len(self.prices) in (0, clusters),
            f"'prices' must be empty or {clusters} numbers, one per model (got {len(self.prices)})",
        )
        return torch.tensor(self.prices or [0.0] * clusters, dtype=torch.float64)
