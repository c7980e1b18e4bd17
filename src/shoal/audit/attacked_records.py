"""Records with their attack scores, and the attacks that use these scores."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

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
    Stack,
)
from shoal.attacks.scores.score_levels import MIN_FOR_LEVELS, record_levels
from shoal.audit.record_table import OUTSIDER, RecordTable, measure, rank_attacks_for_view, views_within
from shoal.core.errors import InputError, require
from shoal.core.formats import one_line
from shoal.data.names import require_unambiguous
from shoal.data.preferences import VIEWS, View
from shoal.metrics import MembershipMetrics, roc_auc
from shoal.metrics.intervals import Bools, Floats, Ints

Names = NDArray[np.object_]

REFERENCE_ATTACKS: tuple[ReferenceAttack, ...] = (
    LossScore(), DifficultyCalibration(), OfflineLiRA(), LiRA(), OfflineRMIA(), RMIA(), BaVarIA(),
)  # fmt: skip
"""The default attacks of an audit on scores."""

CHOSEN_WITHOUT_REFERENCES = (RMIA.name, OfflineRMIA.name, DifficultyCalibration.name, LossScore.name)
"""The deciding attack with fewer than `MIN_TO_CHOOSE` reference models is the first available of these."""

MIN_TO_CHOOSE = 4
"""The number of reference models needed to choose the deciding attack by its AUC on them."""

MIN_OF_CELL = 50
"""The number of members, and of non-members, that a cell of `reference_thresholds` needs for a separate threshold."""


@dataclass(frozen=True, eq=False)
class AuditRecords:
    """Records under attack, with their scores.

    Args:
        scores: the M records' scores on the attacked model and on reference models.
        client: the name of each record's client, (M,).
        group: the name of the group of each record's client, (M,).
        all_models: the `logit_confidence` of each record under every cluster's model, (M, K), or ``None`` if only one
            model is known.
        further: the results of attacks that need more than ``scores``, by their key in audit.json. A NaN score means
            that the attack has no score for the record.
        notes: caveats about the records, as sentences without a full stop.
        pair: the pair number of each record, (M,), or ``None`` if the records are independent. A pair is a member and a
            non-member of one client.

    Raises:
        InputError: there are several groups and one is named ``all``.
    """

    scores: ReferenceScores
    record: Names
    client: Names
    group: Names
    all_models: Floats | None = None
    further: Mapping[str, RecordTable] = field(default_factory=dict)
    omitted: Mapping[str, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    pair: Ints | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        require_unambiguous(set(self.group))

    def __len__(self) -> int:
        return len(self.record)

    def rows_of(self, attack: str, answers: RecordTable) -> RecordTable:
        """Add the records' names to an attack's results, and drop records without a score."""
        columns: dict[str, NDArray[Any] | None] = {name: getattr(self, name) for name in ("record", "client", "group")}
        columns |= {"member": self.scores.member, "model": self.scores.model, "pair": self.pair}
        columns |= {"attack": np.broadcast_to(attack, len(self)), "level": self._levels(answers), "reference": None}
        table, scored = replace(answers, **columns), ~np.isnan(answers.score)
        return table if scored.all() else table.take(scored)

    def _levels(self, answers: RecordTable) -> Floats | None:
        """Return the `record_levels` (M,) of an attack's scores, or None with too few reference models."""
        reference = answers.reference
        if reference is None or reference.shape[1] < MIN_FOR_LEVELS or not np.isfinite(reference).all():
            return None
        try:
            return record_levels(answers.score, reference, self.scores.reference_member)
        except InputError:
            # The scores do not vary.
            return None


@dataclass(frozen=True, eq=False)
class AttackedRecords:
    """The results of every attack on the same records.

    Args:
        attacks: the scored records of each attack, by the attack's key in audit.json.
        order: the attacks' keys, ordered by their strength on the reference models.
    """

    attacks: Mapping[str, RecordTable]
    order: Sequence[str]
    references: int
    omitted: Mapping[str, str] = field(default_factory=dict)
    __repr__ = one_line

    @property
    def views(self) -> dict[str, View]:
        """The view that each attack needs."""
        return {name: table.view[0] for name, table in self.attacks.items()}

    @cached_property
    def on_all(self) -> dict[str, MembershipMetrics]:
        """Each attack's metrics on all records; the first attack of `order` comes first."""
        return {name: measure(self.attacks[name]) for name in dict.fromkeys((self.order[0], *self.attacks))}

    def chosen(self, view: View = OUTSIDER) -> str:
        """Return the key of the attack chosen for a view, without knowledge of the attacked model's members."""
        return next(iter(rank_attacks_for_view(view, self.views, self.order, self.on_all)), self.order[0])

    def measured(self, by: str, view: View | None = None) -> dict[Any, dict[str, MembershipMetrics]]:
        """Measure each attack per value of a column, such as per group.

        With a ``view``, only measure attacks that this view can carry out; the chosen attack comes first.
        """
        metrics: dict[Any, dict[str, MembershipMetrics]] = {}
        for name in self.on_all:
            for value, measured in measure(self.attacks[name], by=by).items():
                metrics.setdefault(value, {})[name] = measured
        if view is None:
            return metrics
        views, order = self.views, (self.chosen(view), *self.order)
        return {
            value: {name: found[name] for name in rank_attacks_for_view(view, views, order, found)}
            for value, found in metrics.items()
        }


def attack_records(records: AuditRecords, attacks: Sequence[ReferenceAttack] = REFERENCE_ATTACKS) -> AttackedRecords:
    """Attack ``records`` with every attack that their scores allow; see `shoal.audit_records`.

    The chosen attack has the largest AUC when each reference model is attacked with the remaining models as references.
    With fewer than `MIN_TO_CHOOSE` reference models, the chosen attack is the first available attack of
    `CHOSEN_WITHOUT_REFERENCES`. Stacks (`stack_scores`) are never chosen.
    """
    scores, trained = records.scores, records.scores.reference_member
    for kind, count in (("members", int(scores.member.sum())), ("non-members", int((~scores.member).sum()))):
        require(count >= 2, f"an attack needs at least two {kind} (got {count})")
    answers, strength, omitted = dict[str, RecordTable](), dict[str, float](), dict[str, str]()
    cells = threshold_cells(np.unique(records.group, return_inverse=True)[1], scores.model)
    for attack in attacks:
        if scores.references < attack.least:
            omitted[attack.name] = f"needs {attack.least} reference models; there are {scores.references}"
            continue
        try:
            score = attack.scores(scores)
        except InputError as error:
            # No reference model may have a record as member, although the attack needs one.
            omitted[attack.name] = str(error)
            continue
        usable = np.shape(score) == scores.member.shape and bool(np.isfinite(score).all())
        require(usable, f"attack '{attack.name}': 'scores' must return one finite number per record")
        left_out = leave_one_out_scores(attack, scores)
        thresholds = reference_thresholds(score, left_out, trained, *cells)
        answers[attack.name] = RecordTable.from_columns(
            score, threshold=thresholds, view=attack.view, reference=left_out
        )
        if left_out is not None and scores.references >= MIN_TO_CHOOSE:
            strength[attack.name] = roc_auc(left_out.ravel(), trained.ravel())
    if records.all_models is not None and records.all_models.shape[1] > 1:
        score = OtherClusters(records.all_models).scores(scores)
        thresholds = reference_thresholds(score, None, trained, *cells)
        answers[OtherClusters.name] = RecordTable.from_columns(score, threshold=thresholds, view=OtherClusters.view)
    else:
        omitted[OtherClusters.name] = "there is only one model"
    answers |= records.further
    stacks, without = stack_scores(answers, trained, *cells)
    answers, omitted = answers | stacks, omitted | without
    order = [*sorted(strength, key=lambda name: -strength[name]), *CHOSEN_WITHOUT_REFERENCES, *answers]
    return AttackedRecords(
        attacks={name: records.rows_of(name, scored) for name, scored in answers.items()},
        order=[*dict.fromkeys(name for name in order if name in answers)],
        references=scores.references,
        omitted={**omitted, **records.omitted},
    )


def stack_scores(
    answers: Mapping[str, RecordTable], trained: Bools, *cells: Ints
) -> tuple[dict[str, RecordTable], dict[str, str]]:
    """Combine each view's attacks into one score, called a stack.

    Only attacks with scores on reference models are combined. The stacks' keys are ``stack``, ``stack-client`` and
    ``stack-server``.

    Returns:
        The stacks by key, and the reasons for missing stacks by key.
    """
    references = trained.shape[1]
    if references < Stack.least:
        return {}, {Stack.name: f"needs {Stack.least} reference models; there are {references}"}
    stacks = dict[str, RecordTable]()
    for view in VIEWS:
        parts = [
            part
            for part in answers.values()
            if part.view[0] in views_within(view) and part.reference is not None and np.isfinite(part.reference).any()
        ]
        if len(parts) > 1 and view in {part.view[0] for part in parts}:
            of_references = np.stack([part.reference for part in parts if part.reference is not None], axis=2)
            score, left_out = Stack().scores(np.stack([part.score for part in parts], axis=1), of_references, trained)
            name = Stack.name if view == OUTSIDER else f"{Stack.name}-{view}"
            thresholds = reference_thresholds(score, left_out, trained, *cells)
            stacks[name] = RecordTable.from_columns(score, threshold=thresholds, view=view, reference=left_out)
    return stacks, {} if stacks else {Stack.name: "needs two attacks whose scores on reference models are known"}


def threshold_cells(group: Ints, model: Ints) -> tuple[Ints, Ints]:
    """Return each record's cells for `reference_thresholds`: its group, and its pair (group, model), as numbers."""
    return group, group * (int(model.max(initial=0)) + 1) + model


def leave_one_out_scores(attack: ReferenceAttack, records: ReferenceScores) -> Floats | None:
    """Attack each reference model with the remaining models as references.

    Reference federations are trained in pairs on opposite halves of the records. The attack on one model leaves out its
    partner, which would give members fewer IN scores than non-members.

    Returns:
        Scores (M, R), or ``None`` with too few reference models or too few members.
    """
    trained = records.reference_member
    if not 0 < records.references > attack.least or not trained.any() or trained.all():
        return None
    columns = list[Floats]()
    for r in range(records.references):
        # The partner of model r trained on none of its records and on most of the others.
        both, either = trained & trained[:, [r]], trained | trained[:, [r]]
        partner = ~both.any(axis=0) & (either.sum(axis=0) > 0.75 * trained.any(axis=1).sum())
        others = np.flatnonzero(~partner)
        if len(others) <= attack.least:
            return None
        try:
            columns.append(attack.scores(records.only(others).leave_one_out(int(np.searchsorted(others, r)))))
        except InputError:
            # Model r may be the only one with members.
            return None
    return np.stack(columns, axis=1)


def reference_thresholds(scores: Floats, left_out: Floats | None, trained: Bools, *cells: Ints) -> Floats:
    """Choose thresholds for an attack's scores without knowledge of the members.

    The threshold maximises the balanced accuracy on the reference models, whose members are known. Without reference
    models, the threshold is the median score. A cell (a group, or a group and a model) with at least `MIN_OF_CELL`
    members and as many non-members gets a separate threshold.

    Args:
        left_out: the scores of `leave_one_out_scores`, (M, R), or ``None`` if there are no reference models.
        trained: the members of each reference model, (M, R).
        cells: each record's cell, (M,) per array; later arrays override earlier arrays.

    Returns:
        The threshold for each record, (M,).

    Example:
        >>> import numpy as np
        >>> from shoal.audit import reference_thresholds
        >>> trained = np.arange(200)[:, None] % 2 == 0
        >>> set(reference_thresholds(np.zeros(200), 4.0 * trained, trained).tolist())
        {2.0}
    """

    def of(rows: Bools) -> float:
        return (
            median_threshold(scores[rows])
            if left_out is None
            else best_threshold(left_out[rows].ravel(), trained[rows].ravel())
        )

    thresholds = np.full(len(scores), of(np.ones(len(scores), dtype=bool)))
    for cell in cells:
        for value in np.unique(cell):
            rows = cell == value
            members = rows.sum() / 2 if left_out is None else trained[rows].sum()
            non_members = rows.sum() / 2 if left_out is None else (~trained[rows]).sum()
            if min(members, non_members) >= MIN_OF_CELL:
                thresholds[rows] = of(rows)
    return thresholds


def median_threshold(scores: Floats) -> float:
    """Return the threshold, midway between two scores, that splits the scores (M,) most evenly."""
    values, counts = np.unique(scores, return_counts=True)
    above = np.append(counts[::-1].cumsum()[::-1], 0)
    return _between(values, int(np.abs(above - len(scores) / 2).argmin()))


def best_threshold(scores: Floats, member: Bools) -> float:
    """Return the threshold with the highest balanced accuracy, midway between two scores.

    If several thresholds are equally good, the middle threshold is returned.

    >>> best_threshold(np.array([0.0, 1.0, 2.0, 3.0]), np.array([False, False, True, True]))
    1.5
    """
    values, at = np.unique(scores, return_inverse=True)
    kinds = np.stack([np.bincount(at[kind], minlength=len(values)) for kind in (member, ~member)])
    # Threshold i lies below value i; the last threshold lies above all values.
    above = np.concatenate([kinds[:, ::-1].cumsum(axis=1)[:, ::-1], np.zeros((2, 1))], axis=1)
    advantage = above[0] / member.sum() - above[1] / (~member).sum()
    # Equal sums of fractions may differ in the last digit.
    best = np.flatnonzero(advantage >= advantage.max() - 1e-12)
    return _between(values, best[len(best) // 2])


def _between(values: Floats, i: int) -> float:
    """Return the midpoint of the sorted values i - 1 and i, or a number beyond the first or last value."""
    ends = np.concatenate([[values[0] - 1], values, [values[-1] + 1]])
    return float((ends[i] + ends[i + 1]) / 2)
