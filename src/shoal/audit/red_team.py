"""The red team: the server attacks each model, and so estimates how exposed its members are.

Source: IFCA-MIR, Algorithm 1 line 6 and Algorithm 2, which does not say on which data the accuracy is computed.
The server holds no members, so there are five estimators. For "federated", it sends the attack, with the reference
models that it needs; each client scores its own examples on the model it chose, and only counts come back. For
"histogram" and "relative-histogram", it sends nothing, and gets histograms of losses (`loss_histograms`).

"shadow" is cross-validated over shadow models: judged on its own training records an attack would look too strong.
Shadow models train on the whole shadow mix, since the server does not know a cluster's groups. A refit draws shadow
models anew: logistic regression draws nothing, and would be the same again on the same records.
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
    """Estimates each model's risk every so many rounds; implements the engine's protocol `RiskEstimator`.

    Args:
        every: rounds from one estimate to the next (IFCA-MIR: 5); 0: never.
        estimator: "shadow": on shadow models left out in turn; "federated": the clients count, on their training and
            hold-out examples; "histogram": by the best threshold on the loss, from the clients' histograms of their
            losses on both, whatever the attack; "relative-histogram": the same of the losses less those on the other
            clusters' models, the nearest to a strong attack for several clusters
            (`docs/results/audit/measured.md`), and too low where models share what they learn; "audit": on all training
            and test examples, which only a simulator knows.
        attack: what each model is attacked with, also at the end of a run.
        shadow_models: the training of the shadow models that the attack needs.
        histograms: what clients send for "histogram" and "relative-histogram".
        refits: how many times the attack at the end of a run is fitted, each time on newly drawn and newly trained
            shadow models. Exposure is by the mean over them; ``mia`` stays that of the first.

    Example:
        >>> import shoal
        >>> one, shadow = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]] * 10, [0, 1] * 10)
        >>> federation = shoal.Federation.from_tensors([one] * 3, test=([[2.0], [-1.0]], [0, 1]), shadow=shadow)
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> red_team = shoal.RedTeam(every=2, estimator="audit", attack=shoal.Gap())
        >>> result = shoal.simulate(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=4, red_team=red_team)
        >>> result.rounds["risk"].tolist()
        [0.5, 1.0, 1.0, 1.0]
    """

    every: Count = 5
    estimator: Estimator = "shadow"
    attack: Annotated[MembershipAttack, Inline()] = ShadowModelAttack()
    shadow_models: Annotated[ShadowModels, Inline()] = ShadowModels()
    histograms: Annotated[LossHistograms, Inline()] = LossHistograms()
    refits: Positive = 1

    def __post_init__(self) -> None:
        # To fit an attack with reference models, one of them takes the place of the attacked model; the "shadow"
        # estimator leaves out another one.
        least = 3 if self.estimator == "shadow" and self.every > 0 else 2
        require(
            self.attack.needs != "reference models" or self.shadow_models.number >= least,
            f"an attack that needs reference models, with the '{self.estimator}' estimator, needs at least {least} "
            f"shadow models; got {self.shadow_models.number}",
        )

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        """The membership-inference accuracy on each of the K models of ``state``.

        A model without clients keeps its last estimate where the estimator needs members. Intervals take examples as
        independent, and the attack as given; those of "shadow" are of the mean over shadow models, not of the attacked
        one.
        """
        if self.estimator == "shadow":
            records = self._records(state, federation, engine, local, stream)
            return of_known(
                [self._cross_validated_accuracy(shadow, stream("attack", k)) for k, shadow in enumerate(records)], state
            )
        if self.estimator in ("histogram", "relative-histogram"):
            relative, coins = self.estimator == "relative-histogram", stream("histograms")
            return of_known(self.histograms.accuracies(state, federation, engine, coins, relative=relative), state)
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
        return of_known(estimates, state)

    def fit(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> tuple[list[FittedAttack], list[Records]]:
        """The attack on each of the K models of ``state``, and the records that each was fitted on."""
        if self.attack.needs == "nothing":
            records = [Records.empty()] * len(state.models)
        else:
            records = self._records(state, federation, engine, local, stream)
        return [self.attack.fit(shadows, stream("attack", k)) for k, shadows in enumerate(records)], records

    def _records(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> list[Records]:
        """The shadow models' records; with the models themselves only where the attack needs them."""
        keep, shadows = self.attack.needs == "reference models", stream("shadow models")
        return self.shadow_models.records(state, federation, engine, local, shadows, keep_models=keep)

    def _cross_validated_accuracy(self, records: Records, stream: Stream) -> Estimate:
        """Mean over shadow models of the balanced accuracy on each of the attack fitted on the others."""
        if int(records.shadow.max()) == 0:
            # One shadow model: two halves of its records take turns.
            records = replace(records, shadow=torch.arange(len(records)) % 2)
        accuracies, parts = [], records.shadow.unique().tolist()
        # Of one example, or of two halves with one kind each, nothing is to be learnt.
        if any(len(records.member[records.shadow == part].unique()) < 2 for part in parts):
            return Estimate()
        for model in parts:
            attack = self.attack.fit(records.without(model), stream("left out", model))
            score, member = attack.score(records.query(model)), records.member[records.shadow == model].numpy()
            accuracies.append(_estimate(RecordTable.from_columns(score, member, threshold=attack.threshold)).value)
        # Student's t knows no bounds, and a rate has two.
        return Estimate(float(np.mean(accuracies)), *np.clip(mean_interval(np.array(accuracies)), 0, 1).tolist())


def _estimate(records: RecordTable) -> Estimate:
    metrics = measure(records)
    return Estimate(metrics.accuracy, metrics.low, metrics.high)


def of_known(estimates: list[Estimate], state: State) -> RiskEstimate:
    """The estimates of K models, and the last ones of ``state`` in the place of NaN."""
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
    """Balanced accuracy from the counts of all clients of model k; NaN without training or hold-out examples."""
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
