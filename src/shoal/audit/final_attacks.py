"""Membership-inference attacks on the models at the end of a run.

The configured attack is fitted `RedTeam.refits` times. The gap attack and a loss threshold are always added. A run with
reference models also has the attacks of `attack_records`.

A personal model is attacked with the attack fitted to its cluster's model, which may understate the exposure.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from operator import methodcaller
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.attacks import FittedAttack, Gap, LossThreshold, MembershipAttack, Records, ShadowModelAttack
from shoal.audit.attacked_records import AttackedRecords
from shoal.audit.model_scores import (
    Margins,
    Membership,
    ModelOutputs,
    ModelScores,
    Predictions,
    evaluate_models,
    is_personal,
    margins_of,
    predictions_of,
    with_references,
)
from shoal.audit.record_table import OUTSIDER, mean_metrics, measure, strongest
from shoal.audit.red_team import RedTeam
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.data.preferences import View
from shoal.engine import DeployedModels, Engine, PersonalModels, State, Training
from shoal.metrics import MembershipMetrics
from shoal.metrics.intervals import Bools, Floats

OUTPUTS_AT_ONCE = 2**22
"""The number of outputs on test examples per batch of models (16 MiB)."""

PAIRS_AT_ONCE = 2**20
"""The number of pairs of a client and a model per batch."""

ByAttack = dict[str, MembershipMetrics]
"""Each attack's metrics on the same records; the attack chosen beforehand comes first."""


@dataclass(frozen=True, eq=False)
class FinalAttacks:
    """The results of all attacks on the final models.

    Args:
        fits: each attack's scores of the deployed models, one per fit; the configured attack comes first.
        shared: the scores of the clusters' models per fit of the configured attack.
        references: the records attacked with reference models, or ``None`` if there are no reference models.
    """

    predictions: Predictions
    fits: Mapping[str, Sequence[ModelScores]]
    shared: Sequence[ModelScores]
    titles: Mapping[str, str] = field(default_factory=dict)
    references: AttackedRecords | None = None
    view: View = OUTSIDER

    @property
    def configured(self) -> Sequence[ModelScores]:
        """The fits of the configured attack on the deployed models."""
        return next(iter(self.fits.values()))

    def measured(self, by: Literal["model", "group"], view: View) -> dict[int, ByAttack]:
        """Measure all attacks that a view can carry out, per deployed model or per group with clients.

        Fitted attacks use all examples; members and non-members have the same groups. Attacks on records with reference
        models are added (`join_attacks`).
        """
        federation, records, titles = self.configured[0].federation, self.records_of(view), self.titles
        groups = federation.groups_with_clients
        by_fits = self._fits_by_model if by == "model" else self._metrics_of_fits("of_group", groups)
        if records is None:
            return {n: {titles.get(name, name): fit for name, fit in fits.items()} for n, fits in by_fits.items()}
        value_of = {g: federation.groups[g] for g in groups} if by == "group" else {n: n for n in by_fits}
        by_records = records.measured(by, view)
        return {n: join_attacks(by_records.get(value_of[n], {}), fits) for n, fits in by_fits.items()}

    @cached_property
    def _fits_by_model(self) -> dict[int, ByAttack]:
        return self._metrics_of_fits("of_model", range(len(self.configured[0].margins)))

    def _metrics_of_fits(self, method: str, numbers: Iterable[int]) -> dict[int, ByAttack]:
        """Return each attack's metrics per number, on the rows from the named method of `ModelScores`."""
        rows_of = {n: methodcaller(method, n) for n in numbers}
        return {
            n: {name: mean_metrics([measure(rows(fit)) for fit in fits]) for name, fits in self.fits.items()}
            for n, rows in rows_of.items()
        }

    def records_of(self, view: View) -> AttackedRecords | None:
        """Return the attacked records for a view, or ``None`` if the configured attack decides the exposure."""
        alone = view == OUTSIDER and self.references is not None and not self.references.references
        return None if alone else self.references


def join_attacks(by_records: ByAttack, by_fits: ByAttack) -> ByAttack:
    """Join the metrics of attacks on records and of fitted attacks.

    Attacks on records come first. If an attack's metrics on records are NaN, the fitted attack's metrics replace them.
    """
    measured = {name: metrics for name, metrics in by_records.items() if not np.isnan(metrics.accuracy)}
    return {**by_records, **by_fits, **measured}


def attack_final_models(
    state: State,
    deployed: DeployedModels,
    training: Training,
    red_team: RedTeam,
    stream: Stream,
    *,
    members: Membership,
    member_rounds: int,
    references: AttackedRecords | None = None,
    view: View = OUTSIDER,
) -> FinalAttacks:
    """Attack the final models and score the deployed models; see `measure_final`."""
    federation, engine, personal = training.federation, training.engine, is_personal(deployed)
    local, used = training.local_of_clusters(state), red_team.attack.needs != "nothing"
    configured, by_loss = [], []
    # An attack that is fitted on nothing would be the same again.
    for i in range(red_team.refits if used else 1):
        again = stream("refit", i) if i else stream
        attacks, records = red_team.fit(state, federation, engine, local, again("attack"))
        configured.append(_Fit(attack_name(red_team.attack), attacks, records))
        if used:
            thresholds = [LossThreshold().fit(shadows, again("loss threshold", k)) for k, shadows in enumerate(records)]
            by_loss.append(_Fit(attack_name(LossThreshold()), thresholds))
    gap = []
    if federation.classes is not None:
        gap = [_Fit(attack_name(Gap()), [Gap().fit(Records.empty(), stream("gap"))] * len(state.models))]
    # A personal model is attacked by what was fitted on the model of its client's cluster.
    cluster = deployed.assignment.tolist() if personal else list(range(len(deployed.models)))
    attacked = _AttackTarget(deployed.models, cluster, members, deployed.model, federation, engine)
    metric, predictions = engine.model.metric_for(federation.classes), []

    def keep(first: int, outputs: ModelOutputs) -> None:
        predictions.append(predictions_of(outputs, first, deployed, federation, metric))

    scores, fits = iter(attacked.scores([*configured, *by_loss, *gap], keep)), dict[str, list[ModelScores]]()
    for of_attack in filter(None, (configured, by_loss, gap)):
        # The configured attack may be one of the others.
        fits.setdefault(of_attack[0].attack, [*islice(scores, len(of_attack))])
    shared = fits[attack_name(red_team.attack)]
    if personal:
        of_clusters, nobody = Membership.of_clusters(state, member_rounds), torch.full((len(federation),), -1)
        clusters = list(range(len(state.models)))
        shared = _AttackTarget(state.models, clusters, of_clusters, nobody, federation, engine).scores(configured)
    return FinalAttacks(
        predictions=Predictions.join(predictions),
        fits=fits,
        shared=shared,
        titles={
            attack_name(shadows): configured_title(shadows) for shadows in (Gap(), LossThreshold(), red_team.attack)
        },
        references=references,
        view=view,
    )


def attack_name(attack: MembershipAttack) -> str:
    """Return the key in audit.json of a run's configured attack.

    >>> attack_name(ShadowModelAttack()), attack_name(Gap())
    ('posterior', 'gap')
    """
    if isinstance(attack, ShadowModelAttack):
        return "posterior"
    return str(getattr(attack, "name", type(attack).__name__))


def configured_title(attack: MembershipAttack) -> str:
    """Return the attack's title in tables."""
    return str(getattr(attack, "title", type(attack).__name__))


@dataclass(frozen=True, eq=False)
class _Fit:
    """An attack fitted on each of the K clusters' models, and the records with their reference models."""

    attack: str
    fitted: Sequence[FittedAttack]
    records: Sequence[Records] = ()


@dataclass(frozen=True, eq=False)
class _AttackTarget:
    """The S models to attack, with each model's cluster, members and users."""

    models: Tensor | PersonalModels
    cluster: Sequence[int]
    members: Membership
    model: Tensor
    """The model that each client uses, (N,) int64, or -1 for none."""
    federation: Federation
    engine: Engine

    def scores(
        self, fits: Sequence[_Fit], watch: Callable[[int, ModelOutputs], None] | None = None
    ) -> list[ModelScores]:
        """Return each attack's scores; after each batch, call ``watch`` with the first model and the outputs."""
        outputs_of_model = len(self.federation.test) * (self.federation.classes or self.federation.test.y[0].numel())
        size = max(1, OUTPUTS_AT_ONCE // max(1, outputs_of_model))
        parts = [self._margins(slice(k, k + size), fits, watch) for k in range(0, len(self.models), size)]
        return [
            ModelScores([*chain.from_iterable(margins)], self.members, self.federation, fit.attack)
            for fit, margins in zip(fits, zip(*parts, strict=True), strict=True)
        ]

    def _margins(
        self, part: slice, fits: Sequence[_Fit], watch: Callable[[int, ModelOutputs], None] | None
    ) -> list[list[Margins]]:
        """Return the margins of each fit on a slice of the models."""
        members, clusters = self.members.trainers[:, part], self.cluster[part]
        clients = members | (self.model[:, None] == torch.arange(len(self.models))[part])
        outputs = evaluate_models(self.models[part], clients, self.federation, self.engine, members=members)
        if watch is not None:
            watch(part.start, outputs)
        margins = []
        for fit in fits:
            records = [fit.records[k] for k in clusters] if fit.records else []
            asked = with_references(outputs, self.federation, self.engine, records)
            margins.append(margins_of(asked, [fit.fitted[k] for k in clusters]))
        return margins


def exposure_of_clients(by_model: Sequence[ByAttack], trainers: Bools, federation: Federation) -> dict[str, NDArray]:
    """Compute the clients' exposure columns of `clients.csv`, (N,) each.

    ``exposure`` is the `strongest` attack's mean balanced accuracy over its fits, on the most exposed model that the
    client trained; NaN for a client that never trained. ``exposure_low`` is the lower end of its 95 % interval.
    ``exposure_null_high`` is the 95 % quantile of the balanced accuracy if nothing is leaked. ``exceeded`` means that
    ``exposure_low`` is above the client's limit.

    Args:
        trainers: the clients that trained each model, (N, S).
    """
    decisions = [strongest(attacks) for attacks in by_model]
    decisive = [attacks[name] for attacks, (name, _) in zip(by_model, decisions, strict=True)]
    accuracy = np.array([metrics.accuracy for metrics in decisive])
    worst, measured = _worst(trainers, accuracy)
    null_high, low = np.array([metrics.null_high for metrics in decisive]), np.array([low for _, low in decisions])
    exposure_low = np.where(measured, low[worst], np.nan)
    return {
        "exposure": np.where(measured, accuracy[worst], np.nan),
        "exposure_low": exposure_low,
        "exposure_null_high": np.where(measured, null_high[worst], np.nan),
        "attack": np.where(measured, np.array([name for name, _ in decisions])[worst], "none"),
        "exceeded": exposure_low > federation.preferences.threshold.numpy(),
    }


def _worst(trainers: Bools, accuracy: Floats) -> tuple[NDArray, Bools]:
    """Return the most exposed model that each client trained, (N,), and whether there is one, (N,)."""
    defined = ~np.isnan(accuracy)
    worst, measured = np.zeros(len(trainers), dtype=np.int64), np.zeros(len(trainers), dtype=bool)
    # Clients in batches, since N S numbers are too many if every client has its own model.
    size = max(1, PAIRS_AT_ONCE // max(1, len(accuracy)))
    for first in range(0, len(trainers), size):
        some = slice(first, first + size)
        measurable = trainers[some] & defined
        worst[some] = np.where(measurable, accuracy, -np.inf).argmax(axis=1)
        measured[some] = measurable.any(axis=1)
    return worst, measured
