"""The red team: the server's attacks that estimate the exposure of each model's members during training.

Source: IFCA-MIR, Algorithm 1 line 6 and Algorithm 2. IFCA-MIR does not specify the data for the attack accuracy;
`RedTeam` offers five estimators.
"""

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch

from shoal.attacks.membership_attack import FittedAttack, MembershipAttack, Query, Records, ReferenceModels
from shoal.attacks.queries.loss_histograms import LossHistograms, require_holdout
from shoal.attacks.queries.shadow_models import ShadowModels
from shoal.attacks.queries.shokri import ShadowModelAttack
from shoal.audit.model_scores import Membership, ModelScores, evaluate_models, margins_of
from shoal.audit.record_table import RecordTable, measure
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.settings import Count, Inline, Positive, settings
from shoal.data.federation import Federation
from shoal.engine import Engine, LocalSGD, RiskEstimate, State
from shoal.metrics.intervals import Estimate, mean_interval

Estimator = Literal["shadow", "federated", "histogram", "relative-histogram", "audit"]

NEED_HOLDOUT: tuple[Estimator, ...] = ("federated", "histogram", "relative-histogram")
"""The estimators that need clients' hold-out examples."""


@settings
class RedTeam:
    """A periodic attack on each model that estimates the model's risk (a `RiskEstimator`).

    Args:
        every: the number of rounds between estimates (5 in IFCA-MIR); with 0, risks are never estimated.
        estimator: how the risk is estimated. "shadow" attacks each shadow model with the remaining shadow models.
            "federated" sends the attack to the clients, which return how many training and hold-out examples the attack
            classifies as members. "histogram" chooses the best loss threshold from clients' histograms of training and
            hold-out losses, for any ``attack``. "relative-histogram" is like "histogram", but subtracts the mean loss
            of the other clusters' models from each loss. With several clusters, "relative-histogram" is closest to a
            strong attack (`docs/results/audit/measured.md`), but too low for models that share parameters. "audit" uses
            all training and test examples, which only a simulator knows.
        attack: the attack on each model, during training and at the end of a run.
        shadow_models: the training of the attack's shadow models.
        histograms: the clients' histograms for "histogram" and "relative-histogram".
        refits: the number of attack fits at the end of a run, each with new shadow models. The exposure is the mean
            over fits, and ``mia`` is the accuracy of the first fit.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> red_team = shoal.RedTeam(every=2, estimator="audit", attack=shoal.Gap())
        >>> result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=4, red_team=red_team)
        >>> result.rounds["risk"].tolist()
        [0.5, 0.5, 0.5, 0.5]
    """

    every: Count = 5
    estimator: Estimator = "shadow"
    attack: Annotated[MembershipAttack, Inline()] = ShadowModelAttack()
    shadow_models: Annotated[ShadowModels, Inline()] = ShadowModels()
    histograms: Annotated[LossHistograms, Inline()] = LossHistograms()
    refits: Positive = 1

    def __post_init__(self) -> None:
        # Fitting an attack with reference models uses one of them as the attacked model; "shadow" leaves out another.
        least = 3 if self.estimator == "shadow" and self.every > 0 else 2
        require(
            self.attack.needs != "reference models" or self.shadow_models.number >= least,
            f"the '{self.estimator}' estimator needs at least {least} shadow models (got {self.shadow_models.number})",
        )

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        """Estimate the membership-inference accuracy on each of the K models of ``state``.

        A model without clients keeps its last estimate. For "shadow", the interval is for the mean over shadow models.
        Other intervals treat the attack as fixed and the examples as independent.
        """
        if self.estimator == "shadow":
            records = self._records(state, federation, engine, local, stream)
            return fill_unknown(
                [self._cross_validated_accuracy(shadow, stream("attack", k)) for k, shadow in enumerate(records)], state
            )
        if self.estimator in ("histogram", "relative-histogram"):
            relative, coins = self.estimator == "relative-histogram", stream("histograms")
            return fill_unknown(self.histograms.accuracies(state, federation, engine, coins, relative=relative), state)
        attacks, records = self.fit(state, federation, engine, local, stream)
        if self.estimator == "federated":
            estimates = [
                _federated_accuracy(k, attack, records[k].reference, state, federation, engine)
                for k, attack in enumerate(attacks)
            ]
        else:
            members = state.assignment[:, None] == torch.arange(len(attacks))
            outputs = evaluate_models(state.models, members, federation, engine, records)
            scores = ModelScores(margins_of(outputs, attacks), Membership(members, state.assignment), federation)
            estimates = [_estimate(scores.of_model(k)) for k in range(len(attacks))]
        return fill_unknown(estimates, state)

    def fit(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> tuple[list[FittedAttack], list[Records]]:
        """Fit the attack on each of the K models of ``state``."""
        if self.attack.needs == "nothing":
            records = [Records.empty()] * len(state.models)
        else:
            records = self._records(state, federation, engine, local, stream)
        return [self.attack.fit(shadows, stream("attack", k)) for k, shadows in enumerate(records)], records

    def _records(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> list[Records]:
        """Return the shadow models' records, and the models themselves if the attack needs them."""
        keep, shadows = self.attack.needs == "reference models", stream("shadow models")
        return self.shadow_models.records(state, federation, engine, local, shadows, keep_models=keep)

    def _cross_validated_accuracy(self, records: Records, stream: Stream) -> Estimate:
        """Attack each shadow model with the remaining shadow models, and average the balanced accuracy."""
        if int(records.shadow.max()) == 0:
            # A single shadow model is split into two halves of its records.
            records = replace(records, shadow=torch.arange(len(records)) % 2)
        accuracies, parts = [], records.shadow.unique().tolist()
        # Each part needs members and non-members.
        if any(len(records.member[records.shadow == part].unique()) < 2 for part in parts):
            return Estimate()
        for model in parts:
            attack = self.attack.fit(records.without(model), stream("left out", model))
            score, member = attack.score(records.query(model)), records.member[records.shadow == model].numpy()
            accuracies.append(_estimate(RecordTable.from_columns(score, member, threshold=attack.threshold)).value)
        # Student's t interval may exceed the range of a rate.
        return Estimate(float(np.mean(accuracies)), *np.clip(mean_interval(np.array(accuracies)), 0, 1).tolist())


def _estimate(records: RecordTable) -> Estimate:
    metrics = measure(records)
    return Estimate(metrics.accuracy, metrics.low, metrics.high)


def fill_unknown(estimates: list[Estimate], state: State) -> RiskEstimate:
    """Replace NaN estimates by the models' last estimates in ``state``."""
    measured = torch.tensor(estimates, dtype=torch.float64)
    unknown = measured[:, 0].isnan()
    risks = torch.where(unknown, state.risks, measured[:, 0])
    return RiskEstimate(risks, torch.where(unknown[:, None], state.risk_intervals, measured[:, 1:]))


def _federated_accuracy(
    k: int,
    attack: FittedAttack,
    reference: ReferenceModels | None,
    state: State,
    federation: Federation,
    engine: Engine,
) -> Estimate:
    """Return the balanced accuracy over all clients of model k, or NaN without training or hold-out examples."""
    require_holdout(federation, "federated")
    tables = []
    clients = torch.nonzero(state.assignment == k).flatten()
    for shards, members in ((federation.clients, True), (federation.holdout, False)):
        theirs = shards.take(clients)
        if len(theirs.indices) == 0:
            return Estimate()
        rows = theirs.indices.to(theirs.y.device)
        outputs = engine.outputs(state.models[k], theirs.x, rows).cpu()
        of_reference = None if reference is None else reference.evaluate(theirs.x, rows, engine)
        query = Query.offline(outputs, theirs.y[rows].cpu(), of_reference, engine.model.loss)
        tables.append(RecordTable.from_columns(attack.score(query), members, threshold=attack.threshold))
    return _estimate(RecordTable.join(tables))
