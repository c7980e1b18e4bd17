"""The membership-inference attacks on the final models, the configured one fitted as often as the red team says.

A personal model is attacked by what was fitted on its cluster's model: shadow models of every client would cost N times
as much. It may understate the exposure of personal models.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.attacks import FittedAttack, Gap, LossThreshold, Records
from shoal.audit.attack_metrics import attack_key
from shoal.audit.exposure import title_of
from shoal.audit.members import Membership, is_personal
from shoal.audit.membership_audit import Margins, MembershipAudit
from shoal.audit.model_outputs import ModelOutputs, evaluate_models, with_references
from shoal.audit.predictions import Answers
from shoal.audit.red_team import RedTeam
from shoal.audit.repeated_attacks import Refits
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Deployed, Engine, PersonalModels, State, Training

PART = 2**22
"""Outputs on test examples, in numbers, that are held at once, unless one model has more: 16 MiB."""


@dataclass(frozen=True, eq=False)
class FinalAttacks:
    """The audits of the final models by every attack.

    Args:
        answers: what the deployed models say.
        by_attack: of the deployed models by the attacks' titles, the configured one first.
        keys: the attacks' keys in audit.json by their titles.
        by_loss: of the deployed models by a threshold on the loss; None where there were no records to set it by.
        shared: of the clusters' models by the configured attack.
        used_shadow_models: whether the attacks were fitted on shadow models.
    """

    answers: Answers
    by_attack: Mapping[str, Refits]
    keys: Mapping[str, str]
    by_loss: Refits | None
    shared: Refits
    used_shadow_models: bool

    @property
    def configured(self) -> Refits:
        """Of the deployed models, by the configured attack."""
        return next(iter(self.by_attack.values()))

    @property
    def by_key(self) -> Mapping[str, Refits]:
        """Of the deployed models by the attacks' keys in audit.json, the configured one first."""
        return {self.keys[title]: audits for title, audits in self.by_attack.items()}


def attack_final_models(
    state: State,
    deployed: Deployed,
    training: Training,
    red_team: RedTeam,
    stream: Stream,
    *,
    members: Membership,
    member_rounds: int,
) -> FinalAttacks:
    """Fit the attacks on the final ``state`` and audit its models, of the ``members``; see `measurement.measure`."""
    federation, engine, personal = training.federation, training.engine, is_personal(deployed)
    local, used = training.local_of_clusters(state), red_team.attack.needs != "nothing"
    configured, by_loss = [], []
    # An attack that is fitted on nothing would be the same again.
    for i in range(red_team.refits if used else 1):
        again = stream("refit", i) if i else stream
        attacks, records = red_team.fit(state, federation, engine, local, again("attack"))
        configured.append(_Fit(attacks, records))
        if used:
            by_loss.append(
                _Fit([LossThreshold().fit(each, again("loss threshold", k)) for k, each in enumerate(records)])
            )
    gap = []
    if federation.classes is not None:
        gap = [_Fit([Gap().fit(Records.none(), stream("gap"))] * len(state.models))]
    # A personal model is attacked by what was fitted on the model of its client's cluster.
    cluster = deployed.assignment.tolist() if personal else list(range(len(deployed.models)))
    own = _Attacked(deployed.models, cluster, members, deployed.model, federation, engine)
    metric, answers = engine.model.metric_for(federation.classes), []

    def answered(first: int, outputs: ModelOutputs) -> None:
        answers.append(Answers.of(outputs, first, deployed, federation, metric))

    audits = own.audits([*configured, *by_loss, *gap], answered)
    by_attack = {title_of(red_team.attack): Refits(audits[: len(configured)])}
    loss_audits = audits[len(configured) : len(configured) + len(by_loss)]
    if loss_audits:
        by_attack.setdefault(LossThreshold.title, Refits(loss_audits))
    if gap:
        by_attack.setdefault(Gap.title, Refits(audits[-1:]))
    shared = Refits(audits[: len(configured)])
    if personal:
        of_clusters, nobody = Membership.of_clusters(state, member_rounds), torch.full((len(federation),), -1)
        clusters = list(range(len(state.models)))
        shared = Refits(_Attacked(state.models, clusters, of_clusters, nobody, federation, engine).audits(configured))
    return FinalAttacks(
        answers=Answers.joined(answers),
        by_attack=by_attack,
        keys={title_of(each): attack_key(each) for each in (Gap(), LossThreshold(), red_team.attack)},
        by_loss=Refits(loss_audits) if loss_audits else None,
        shared=shared,
        used_shadow_models=used,
    )


@dataclass(frozen=True, eq=False)
class _Fit:
    """An attack fitted on each of the K clusters' models, and the records whose reference models it asks."""

    attacks: Sequence[FittedAttack]
    records: Sequence[Records] = ()


@dataclass(frozen=True, eq=False)
class _Attacked:
    """S models to be attacked: by what was fitted on which cluster's model, whose members, and used by whom."""

    models: Tensor | PersonalModels
    cluster: Sequence[int]
    members: Membership
    model: Tensor
    """(N,) int64, the model that each client uses, on whose examples it is evaluated too; -1: none."""
    federation: Federation
    engine: Engine

    def audits(
        self, fits: Sequence[_Fit], watch: Callable[[int, ModelOutputs], None] | None = None
    ) -> list[MembershipAudit]:
        """By each of ``fits``. The outputs are computed for some models at a time, and none are kept.

        Args:
            watch: is told the number of the first model of each part, and the part's outputs.
        """
        outputs_of_model = len(self.federation.test) * (self.federation.classes or self.federation.test.y[0].numel())
        size = max(1, PART // max(1, outputs_of_model))
        parts = [self._scored(slice(k, k + size), fits, watch) for k in range(0, len(self.models), size)]
        margins = [[each for of_part in of_fit for each in of_part] for of_fit in zip(*parts, strict=True)]
        trainers, latest = self.members.trainers, self.members.latest
        return [MembershipAudit.of_margins(each, trainers, latest, self.federation) for each in margins]

    def _scored(
        self, part: slice, fits: Sequence[_Fit], watch: Callable[[int, ModelOutputs], None] | None
    ) -> list[list[Margins]]:
        """The margins of each of ``fits`` on each of some models."""
        numbers = torch.arange(len(self.models))[part]
        members = self.members.trainers[:, part]
        clients = members | (self.model[:, None] == numbers)
        outputs = evaluate_models(self.models[part], clients, self.federation, self.engine, members=members)
        if watch is not None:
            watch(part.start, outputs)
        margins = []
        for fit in fits:
            records = [fit.records[k] for k in self.cluster[part]] if fit.records else []
            asked = with_references(outputs, self.federation, self.engine, records)
            margins.append(Margins.of(asked, [fit.attacks[k] for k in self.cluster[part]]))
        return margins
