"""Records whose membership is asked, and what every attack says of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
    reference_margins,
)
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.core.representation import one_line
from shoal.data.groups import require_unambiguous
from shoal.metrics import MembershipMetrics, membership_metrics

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Names = NDArray[np.object_]

OUTSIDER, CLIENT, SERVER = "outsider", "client", "server"
"""Attackers: who has the released models; a client, who is sent those of all clusters; the server, who sees updates."""

REFERENCE_ATTACKS: tuple[ReferenceAttack, ...] = (
    LossScore(), DifficultyCalibration(), OfflineLiRA(), LiRA(), OfflineRMIA(), RMIA(), BaVarIA(),
)  # fmt: skip
"""The attacks on a matrix of scores that an audit asks."""


@dataclass(frozen=True, eq=False)
class AttackScores:
    """What an attack says of M records.

    Args:
        attacker: who could carry it out.
        scores: (M,), higher for members.
        margins: (M,) score minus threshold, positive where it says member.
    """

    attacker: str
    scores: Floats
    margins: Floats
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
    def of(
        records: AuditRecords, stream: Stream, attacks: Sequence[ReferenceAttack] = REFERENCE_ATTACKS
    ) -> "AttackedRecords":
        """Attack ``records`` with every attack that their scores allow; see `shoal.audit_records`.

        Raises:
            InputError: too few members or non-members.
        """
        member = records.scores.member
        for kind, count in (("members", int(member.sum())), ("non-members", int((~member).sum()))):
            require(count >= 2, f"an attack is measured on at least two {kind}; got {count}")
        return AttackedRecords(records, *_asked(records, stream, attacks))

    def measured(self, attack: str, which: Bools, *, confidence: float = 0.95) -> MembershipMetrics:
        """Metrics of an attack on the records ``which`` (M,); ``confidence`` is that of all intervals."""
        found, member = self.found[attack], self.records.scores.member[which]
        scores, thresholds = found.scores[which], (found.scores - found.margins)[which]
        return membership_metrics(scores, member, threshold=thresholds, confidence=confidence)


def _asked(
    records: AuditRecords, stream: Stream, attacks: Sequence[ReferenceAttack]
) -> tuple[dict[str, AttackScores], dict[str, str]]:
    """What each attack says, by name; and why the others were not asked."""
    scores, found, omitted = records.scores, dict[str, AttackScores](), dict[str, str]()
    for attack in attacks:
        if scores.references < attack.least:
            omitted[attack.name] = f"needs {attack.least} reference models; there are {scores.references}"
            continue
        try:
            margins = reference_margins(attack, scores, stream(attack.name))
        except InputError as error:
            # Such as an attack that needs models that trained on a record, where none did.
            omitted[attack.name] = str(error)
            continue
        found[attack.name] = AttackScores(OUTSIDER, attack.scores(scores), margins)
    if records.all_models is not None and records.all_models.shape[1] > 1:
        attack, alone = OtherClusters(records.all_models), scores.only([])
        margins = reference_margins(attack, alone, stream(attack.name))
        found[attack.name] = AttackScores(CLIENT, attack.scores(alone), margins)
    else:
        omitted[OtherClusters.name] = "there is only one model"
    return {**found, **records.further}, {**omitted, **records.omitted}
