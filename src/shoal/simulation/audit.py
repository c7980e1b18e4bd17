"""What attackers find in a trained federation: every attack's metrics, overall, by group, by model and by client."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
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
    record_exposure,
    reference_margins,
)
from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.core.representation import one_line
from shoal.metrics import MembershipMetrics, empirical_epsilon, membership_metrics

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Names = NDArray[np.object_]

OUTSIDER, CLIENT, SERVER = "outsider", "client", "server"
"""Attackers: who has the released models; a client, who is sent those of all clusters; the server, who sees updates."""

REFERENCE_ATTACKS: tuple[ReferenceAttack, ...] = (
    LossScore(), DifficultyCalibration(), OfflineLiRA(), LiRA(), OfflineRMIA(), RMIA(), BaVarIA(),
)  # fmt: skip
"""The attacks on a matrix of scores that an audit asks."""

METRICS = {
    "auc": ("auc", "auc_low", "auc_high"),
    "accuracy": ("accuracy", "low", "high"),
    "tpr_at_fpr_0.01": ("tpr_at_1_percent_fpr", "tpr_at_1_percent_fpr_low", "tpr_at_1_percent_fpr_high"),
    "tpr_at_fpr_0.001": ("tpr_at_01_percent_fpr", "tpr_at_01_percent_fpr_low", "tpr_at_01_percent_fpr_high"),
}
"""The metrics of an audit by name, each with the fields of `MembershipMetrics` that hold it and its interval."""

ATTACK_COLUMNS = (
    "attacker", "attack", "scope", "name", "members", "non_members",
    *(column for metric in METRICS for column in (metric, f"{metric}.low", f"{metric}.high")),
)  # fmt: skip
"""The columns of `Audit.attacks`."""

RECORD_COLUMNS = ("record", "client", "group", "member", "score", "exposure", "exposure.low")
"""The columns of `Audit.records`."""


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
    """

    scores: ReferenceScores
    record: Names
    client: Names
    group: Names
    all_models: Floats | None = None
    further: Mapping[str, AttackScores] = field(default_factory=dict)
    omitted: Mapping[str, str] = field(default_factory=dict)
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.record)


@dataclass(frozen=True, eq=False)
class Audit:
    """What attackers find.

    Args:
        attacks: one row per attack and scope, with `ATTACK_COLUMNS`: "all", each "group", each attacked "model" and
            each "client", by the strongest attack only. NaN: not measured, such as a TPR with too few non-members.
        records: one row per record with `RECORD_COLUMNS`, the most exposed first: the score of the strongest attack,
            and the record's exposure over reference models with its lower end (`record_exposure`).
        references: R, the number of reference models.
        members, non_members: how many records of each kind.
        empirical_epsilon: a lower bound, at 95 % confidence, on the epsilon of (epsilon, delta)-differential privacy of
            a record, by the strongest attack; as if the records of one run were independent.
        delta: of that epsilon.
        omitted: attacks that were not computed, and why.
        guesses: further keys and values of audit.json: what the server guesses beside membership.
    """

    attacks: pd.DataFrame
    records: pd.DataFrame
    references: int
    members: int
    non_members: int
    empirical_epsilon: float
    delta: float
    omitted: Mapping[str, str] = field(default_factory=dict)
    guesses: Mapping[str, float] = field(default_factory=dict)
    __repr__ = one_line

    def strongest(self, scope: str = "all", name: str = "all") -> Mapping[Hashable, Any]:
        """The row of the attack with the largest balanced accuracy in a scope; NaN where one kind of records lacks."""
        rows = self.attacks[(self.attacks["scope"] == scope) & (self.attacks["name"] == name)]
        return rows.sort_values("accuracy", ascending=False, kind="stable").to_dict("records")[0]

    @property
    def groups(self) -> list[str]:
        """The names of the groups that have records."""
        return self.attacks.loc[self.attacks["scope"] == "group", "name"].unique().tolist()

    def flat(self) -> dict[str, float | str]:
        """The keys and values of audit.json; what was not measured is left out."""
        flat: dict[str, float | str] = {}
        shown = self.attacks[self.attacks["scope"].isin(["all", "group"])]
        for row in shown.to_dict("records"):
            key = f"attacks.{row['attack']}.{row['name']}"
            for metric in METRICS:
                values = {"": row[metric], ".low": row[f"{metric}.low"], ".high": row[f"{metric}.high"]}
                flat |= {f"{key}.{metric}{end}": value for end, value in values.items() if not np.isnan(value)}
        best = {name: self.strongest(*scope) for name, scope in self._scopes().items()}
        flat |= {f"strongest.{name}": str(row["attack"]) for name, row in best.items() if not np.isnan(row["accuracy"])}
        flat |= {"references": self.references, "members": self.members, "non_members": self.non_members}
        if not np.isnan(self.empirical_epsilon):
            flat |= {"empirical_epsilon": self.empirical_epsilon, "empirical_epsilon.delta": self.delta}
        return {**flat, **self.guesses}

    def _scopes(self) -> dict[str, tuple[str, str]]:
        return {"all": ("all", "all"), **{name: ("group", name) for name in self.groups}}


def audit_records(
    records: AuditRecords,
    stream: Stream,
    *,
    attacks: Sequence[ReferenceAttack] = REFERENCE_ATTACKS,
    delta: float = 1e-5,
) -> Audit:
    """Attack ``records`` with every attack that their scores allow.

    Thresholds come from the reference models, each attacked in turn with the others as its references
    (`reference_margins`), so no attack knows the attacked model's members.

    Args:
        records: at least two members and two non-members.
        stream: of what is random where thresholds cannot be set by reference models.
        attacks: on the matrix of scores.
        delta: of the empirical epsilon.

    Raises:
        InputError: too few members or non-members.
    """
    member = records.scores.member
    for kind, count in (("members", int(member.sum())), ("non-members", int((~member).sum()))):
        require(count >= 2, f"an attack is measured on at least two {kind}; got {count}")
    found, omitted = _asked(records, stream, attacks)
    everybody = np.ones(len(records), dtype=bool)
    rows = [_row(name, found[name], "all", "all", everybody, member) for name in found]
    best = str(max(rows, key=lambda row: row["accuracy"])["attack"])
    model = records.scores.model.astype(str)
    for scope, label, asked in (
        ("group", records.group, found),
        ("model", model, found),
        ("client", records.client, (best,)),
    ):
        for each in pd.unique(label):
            rows += [_row(name, found[name], scope, str(each), label == each, member) for name in asked]
    strongest = found[best]
    return Audit(
        attacks=pd.DataFrame(rows, columns=[*ATTACK_COLUMNS]),
        records=_records(records, strongest),
        references=records.scores.references,
        members=int(member.sum()),
        non_members=int((~member).sum()),
        empirical_epsilon=empirical_epsilon(strongest.scores, member, stream("epsilon"), delta=delta),
        delta=delta,
        omitted=omitted,
    )


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


def _records(records: AuditRecords, strongest: AttackScores) -> pd.DataFrame:
    """`Audit.records`."""
    exposure, low = record_exposure(records.scores)
    listed = pd.DataFrame(
        {
            "record": records.record,
            "client": records.client,
            "group": records.group,
            "member": records.scores.member,
            "score": strongest.scores,
            "exposure": exposure,
            "exposure.low": low,
        }
    )
    by = "score" if listed["exposure"].isna().all() else "exposure"
    return listed.sort_values(by, ascending=False, kind="stable", ignore_index=True)


def _row(name: str, attack: AttackScores, scope: str, of: str, which: Bools, member: Bools) -> dict[str, Any]:
    scores, thresholds = attack.scores[which], (attack.scores - attack.margins)[which]
    return attack_row(attack.attacker, name, scope, of, membership_metrics(scores, member[which], threshold=thresholds))


def attack_row(attacker: str, attack: str, scope: str, name: str, measured: MembershipMetrics) -> dict[str, Any]:
    """A row of `Audit.attacks`."""
    row: dict[str, Any] = {"attacker": attacker, "attack": attack, "scope": scope, "name": name}
    row |= {"members": measured.members, "non_members": measured.non_members}
    for metric, attributes in METRICS.items():
        for end, attribute in zip(("", ".low", ".high"), attributes, strict=True):
            row[f"{metric}{end}"] = getattr(measured, attribute)
    return row
