"""Records whose membership is asked, and what every attack says of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shoal.attacks import (
    RMIA,
    BaVarIA,
    DifficultyCalibration,
    LiRA,
    LossScore,
    OfflineLiRA,
    OfflineRMIA,
    OtherClusters,
    ReferenceAttack,
    ReferenceScores,
)
from shoal.audit.thresholds import leave_one_out_scores, reference_thresholds
from shoal.core.errors import InputError, require
from shoal.core.representation import one_line
from shoal.data.names import require_unambiguous
from shoal.metrics import MembershipMetrics, membership_metrics, roc_auc

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
Names = NDArray[np.object_]

OUTSIDER, CLIENT, SERVER = "outsider", "client", "server"
"""Attackers: who has the released models; a client, who is sent those of all clusters; the server, who sees updates."""

REFERENCE_ATTACKS: tuple[ReferenceAttack, ...] = (
    LossScore(), DifficultyCalibration(), OfflineLiRA(), LiRA(), OfflineRMIA(), RMIA(), BaVarIA(),
)  # fmt: skip
"""The attacks on a matrix of scores that an audit asks."""

HEADLINES = (RMIA.name, OfflineRMIA.name, DifficultyCalibration.name, LossScore.name)
"""The attack that decides how exposed records are, where reference models are too few to say which is the strongest:
the first of these that was asked."""

LEAST_TO_CHOOSE = 3
"""Reference models from which on they say which attack decides."""


@dataclass(frozen=True, eq=False)
class AttackScores:
    """What an attack says of M records.

    Args:
        attacker: who could carry it out.
        scores: (M,), higher for members.
        margins: (M,) score minus threshold, positive where it says member.
        left_out: (M, R) scores when each reference model is attacked; see `leave_one_out_scores`. None: there are none.
    """

    attacker: str
    scores: Floats
    margins: Floats
    left_out: Floats | None = None
    __repr__ = one_line


@dataclass(frozen=True, eq=False)
class AuditRecords:
    """Records whose membership is attacked, and what models say of them.

    Args:
        scores: by the attacked and by reference models, M records.
        record, client, group: (M,) names of each record, of the client that it belongs or would belong to, and of that
            client's group.
        all_models: (M, K) logit-scaled confidence of every cluster's model; None: only one model is known.
        further: attacks that need more than this, computed elsewhere, by their key in audit.json.
        omitted: such attacks that were not computed, by their key, and why.
        notes: what must be known of the records, in sentences without a full stop.
        pair: (M,) which pair each record is of, where each has one that was trained on and one that was not, both of
            one client; intervals then allow for what the two have in common. None: records are independent.

    Raises:
        InputError: one of several groups is called ``all``.

    Example:
        >>> import numpy as np
        >>> import shoal
        >>> member, none, one_model = np.arange(40) < 20, np.zeros((40, 0)), np.zeros(40, dtype=np.int64)
        >>> scores = shoal.ReferenceScores(2.0 * member, member, none, none > 0, one_model)
        >>> record, client = np.arange(40).astype(object), np.array(["a", "b"] * 20, dtype=object)
        >>> records = shoal.AuditRecords(scores, record, client, group=client)
        >>> audit = shoal.audit_records(records, shoal.Stream(0))
        >>> audit.groups, [audit.strongest("client", name)["members"] for name in ("a", "b")]
        (['a', 'b'], [10, 10])
    """

    scores: ReferenceScores
    record: Names
    client: Names
    group: Names
    all_models: Floats | None = None
    further: Mapping[str, AttackScores] = field(default_factory=dict)
    omitted: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    pair: Ints | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        require_unambiguous(set(self.group))

    def __len__(self) -> int:
        return len(self.record)


@dataclass(frozen=True, eq=False)
class AttackedRecords:
    """M records with what every attack says of them, from which an audit and a run's figures are measured.

    Args:
        records: that were attacked.
        found: what each attack says, by its key in audit.json.
        omitted: attacks that were not computed, and why.
    """

    records: AuditRecords
    found: Mapping[str, AttackScores]
    omitted: Mapping[str, str] = field(default_factory=dict)
    __repr__ = one_line

    @staticmethod
    def of(records: AuditRecords, attacks: Sequence[ReferenceAttack] = REFERENCE_ATTACKS) -> "AttackedRecords":
        """Attack ``records`` with every attack that their scores allow; see `shoal.audit_records`.

        Raises:
            InputError: too few members or non-members.
        """
        member = records.scores.member
        for kind, count in (("members", int(member.sum())), ("non-members", int((~member).sum()))):
            require(count >= 2, f"an attack is measured on at least two {kind}; got {count}")
        return AttackedRecords(records, *_asked(records, attacks))

    @cached_property
    def headline(self) -> str:
        """The attack that is chosen beforehand, without the attacked model's members, to say how exposed records are.

        The one of largest area under the ROC curve where each reference model in turn is attacked with the others as
        its references. With fewer than `LEAST_TO_CHOOSE` the first of `HEADLINES`.
        """
        trained = self.records.scores.reference_member
        known = {name: each.left_out for name, each in self.found.items() if each.left_out is not None}
        if known and trained.shape[1] >= LEAST_TO_CHOOSE:
            return max(known, key=lambda name: roc_auc(known[name].ravel(), trained.ravel()))
        return next((name for name in HEADLINES if name in self.found), next(iter(self.found)))

    def measured(self, which: Bools) -> dict[str, MembershipMetrics]:
        """Metrics of each attack on the records ``which`` (M,), the headline first."""
        return {name: self.measured_by(name, which) for name in dict.fromkeys((self.headline, *self.found))}

    def measured_by(self, attack: str, which: Bools) -> MembershipMetrics:
        """Metrics of an attack on the records ``which`` (M,)."""
        found, member, pair = self.found[attack], self.records.scores.member[which], self.records.pair
        scores, thresholds = found.scores[which], (found.scores - found.margins)[which]
        return membership_metrics(scores, member, threshold=thresholds, pair=None if pair is None else pair[which])


def _asked(records: AuditRecords, attacks: Sequence[ReferenceAttack]) -> tuple[dict[str, AttackScores], dict[str, str]]:
    """What each attack says, by name; and why the others were not asked."""
    scores, found, omitted = records.scores, dict[str, AttackScores](), dict[str, str]()
    cells = threshold_cells(np.unique(records.group, return_inverse=True)[1], scores.model)
    for attack in attacks:
        if scores.references < attack.least:
            omitted[attack.name] = f"needs {attack.least} reference models; there are {scores.references}"
            continue
        try:
            own = attack.scores(scores)
        except InputError as error:
            # Such as an attack that needs models that trained on a record, where none did.
            omitted[attack.name] = str(error)
            continue
        left_out = leave_one_out_scores(attack, scores)
        thresholds = reference_thresholds(own, left_out, scores.reference_member, *cells)
        found[attack.name] = AttackScores(OUTSIDER, own, own - thresholds, left_out)
    if records.all_models is not None and records.all_models.shape[1] > 1:
        own = OtherClusters(records.all_models).scores(scores)
        margins = own - reference_thresholds(own, None, scores.reference_member, *cells)
        found[OtherClusters.name] = AttackScores(CLIENT, own, margins)
    else:
        omitted[OtherClusters.name] = "there is only one model"
    return {**found, **records.further}, {**omitted, **records.omitted}


def threshold_cells(group: Ints, model: Ints) -> tuple[Ints, Ints]:
    """For `reference_thresholds`: the group (M,) of each record, and a number (M,) of its group and model together."""
    return group, group * (int(model.max(initial=0)) + 1) + model
