"""The membership-inference attacks on the final models, the configured one fitted as often as the red team says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from shoal.attacks import (
    FittedAttack,
    Gap,
    LossThreshold,
    MembershipAudit,
    ModelOutputs,
    Records,
    RedTeam,
    evaluate_models,
)
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Deployed, Engine, PersonalModels, State, Training
from shoal.simulation.attack_metrics import attack_key
from shoal.simulation.exposure import title_of
from shoal.simulation.membership import Membership, is_personal
from shoal.simulation.refits import Refits


@dataclass(frozen=True, eq=False)
class FinalAttacks:
    """The audits of the final models by every attack.

    Args:
        outputs: of the deployed models.
        by_attack: of the deployed models by the attacks' titles, the configured one first.
        keys: the attacks' keys in audit.json by their titles.
        by_loss: of the deployed models by a threshold on the loss; None where there were no records to set it by.
        shared: of the clusters' models by the configured attack.
        used_shadow_models: whether the attacks were fitted on shadow models.
    """

    outputs: ModelOutputs
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
    state: State, deployed: Deployed, training: Training, red_team: RedTeam, stream: Stream, member_rounds: int
) -> FinalAttacks:
    """Fit the attacks on the final ``state`` and audit its models; see `simulation.measurement.measure`."""
    federation, engine, personal = training.federation, training.engine, is_personal(deployed)
    of_deployed = Membership.of_deployed(state, deployed, member_rounds)
    number = range(len(deployed.models))
    users = deployed.model[:, None] == deployed.model.new_tensor(number)
    # A personal model is attacked by what was fitted on the model of its client's cluster.
    cluster = deployed.assignment.tolist() if personal else list(number)
    own = _Attacked(deployed.models, cluster, of_deployed, of_deployed.trainers | users, federation, engine)
    shared = None
    if personal:
        of_clusters = Membership.of_clusters(state, member_rounds)
        everyone = list(range(len(state.models)))
        shared = _Attacked(state.models, everyone, of_clusters, of_clusters.trainers, federation, engine)
    local, used = training.local_of_clusters(state), red_team.attack.needs != "nothing"
    # Only reference models make the outputs of one fit others than those of the next.
    anew = red_team.attack.needs == "reference models"
    fits, loss_fits, shared_fits, first, of_shared = [], [], [], None, None
    # An attack that is fitted on nothing would be the same again.
    for i in range(red_team.refits if used else 1):
        again = stream("refit", i) if i else stream
        attacks, records = red_team.fit(state, federation, engine, local, again("attack"))
        outputs = own.outputs(records) if first is None or anew else first
        first = outputs if first is None else first
        fits.append(own.audit(attacks, outputs))
        if used:
            by_loss = [LossThreshold().fit(each, again("loss threshold", k)) for k, each in enumerate(records)]
            loss_fits.append(own.audit(by_loss, outputs))
        if shared is not None:
            of_shared = shared.outputs(records) if of_shared is None or anew else of_shared
            shared_fits.append(shared.audit(attacks, of_shared))
    assert first is not None
    by_attack = {title_of(red_team.attack): Refits(fits)}
    if loss_fits:
        by_attack.setdefault(LossThreshold.title, Refits(loss_fits))
    if federation.classes is not None:
        gap = Gap().fit(Records.none(), stream("gap"))
        by_attack.setdefault(Gap.title, Refits([own.audit([gap] * len(state.models), first)]))
    return FinalAttacks(
        outputs=first,
        by_attack=by_attack,
        keys={title_of(each): attack_key(each) for each in (Gap(), LossThreshold(), red_team.attack)},
        by_loss=Refits(loss_fits) if loss_fits else None,
        shared=Refits(shared_fits or fits),
        used_shadow_models=used,
    )


@dataclass(frozen=True, eq=False)
class _Attacked:
    """S models to be attacked: by what was fitted on which cluster's model, whose members, on whose examples."""

    models: Tensor | PersonalModels
    cluster: Sequence[int]
    members: Membership
    evaluated_on: Tensor
    federation: Federation
    engine: Engine

    def outputs(self, records: Sequence[Records]) -> ModelOutputs:
        """With those of the reference models in the ``records`` of each cluster."""
        of_each = [records[k] for k in self.cluster]
        members = self.members.trainers
        return evaluate_models(self.models, self.evaluated_on, self.federation, self.engine, of_each, members)

    def audit(self, fitted: Sequence[FittedAttack], outputs: ModelOutputs) -> MembershipAudit:
        """By the attacks ``fitted`` on each cluster's model."""
        of_each = [fitted[k] for k in self.cluster]
        return MembershipAudit.of(outputs, of_each, self.members.trainers, self.members.latest, self.federation)
