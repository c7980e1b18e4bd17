"""The table of attacked records, and the one function that measures how well attacks tell members from non-members.

Everything that measures membership comes through here: the attacks at the end of a run, audits with reference models,
audits of clients' updates, canaries, and property inference, whose "members" are the updates with the property.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, overload

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from shoal.attacks.updates.update_scores import NOBODY
from shoal.core.formats import one_line
from shoal.data.preferences import VIEWS, View
from shoal.metrics import MembershipMetrics, membership_metrics
from shoal.metrics.intervals import Bools, Floats, Ints, at_once

OUTSIDER: View = "outsider"
CLIENT: View = "client"
SERVER: View = "server"
"""The views of an attacker, each of which sees what those before it see; `VIEWS` has all."""

CHOSEN_OF_VIEW: Mapping[View, str] = {CLIENT: "span-models", SERVER: "span"}
"""The attack that is chosen beforehand for a view where half of its calls or more are exact."""

JOINT_OF_VIEW: Mapping[View, str] = {CLIENT: "joint-models", SERVER: "joint"}
"""The attack that is chosen beforehand for a view, where no span is exact and its AUC is certainly above 0.5."""

AGAINST_CLIENTS = "-others"
"""Suffix of an attack's name where non-members are other clients' examples, not records that nobody trained on."""


@dataclass(frozen=True, eq=False)
class RecordTable:
    """One row per record, model that it is asked of, and attack. Every column is an array (M,).

    Args:
        score: higher for members.
        member: whether the model was trained on the record.
        threshold: above which the attack says member.
        weight: how much the row counts.
        record, client, group, model: names or numbers of the record, of the client that it belongs or would belong to
            (`NOBODY`: no client's), of its group, and of the model or update that gave the score.
        attack, view: the attack's name, and the `View` that it needs.
        pair: the pair of a member and a non-member that the row is of; intervals then allow for what the two have in
            common. None: rows are independent.
        exact: whether the attack says that its verdict on the record is exact, not one of statistics.
        level: the score's level on its record (`record_levels`), by which a true positive rate has a threshold for each
            record. None: unknown.
        reference: (M, R) scores of the same attack on each of R reference models; None: unknown.

    Example:
        >>> import numpy as np
        >>> from shoal.audit import RecordTable, measure
        >>> member = np.arange(400) < 200
        >>> records = RecordTable.from_columns(1.0 * member, member, threshold=0.5, group=np.arange(400) % 2)
        >>> {group: metrics.members for group, metrics in measure(records, by="group").items()}
        {0: 100, 1: 100}
    """

    score: Floats
    member: Bools
    threshold: Floats
    weight: Floats
    record: NDArray[Any]
    client: NDArray[Any]
    group: NDArray[Any]
    model: NDArray[Any]
    attack: NDArray[Any]
    view: NDArray[Any]
    exact: Bools
    pair: Ints | None = None
    level: Floats | None = None
    reference: Floats | None = None
    __repr__ = one_line

    @staticmethod
    def from_columns(
        score: ArrayLike,
        member: ArrayLike = False,
        *,
        threshold: ArrayLike = 0.0,
        weight: ArrayLike = 1.0,
        record: ArrayLike = NOBODY,
        client: ArrayLike = NOBODY,
        group: ArrayLike = 0,
        model: ArrayLike = 0,
        attack: str = "",
        view: View = OUTSIDER,
        exact: ArrayLike = False,
        pair: Ints | None = None,
        level: Floats | None = None,
        reference: Floats | None = None,
    ) -> "RecordTable":
        """The table of columns (M,); a single value is that of all rows, and takes no memory.

        Without ``member`` nothing can be measured before `AuditRecords.rows_of` fills the column.
        """
        columns = [score, member, threshold, weight, record, client, group, model, attack, view, exact]
        rows = (np.broadcast_to(np.asarray(column), np.shape(score)) for column in columns)
        return RecordTable(*rows, pair=pair, level=level, reference=reference)

    def __len__(self) -> int:
        return len(self.score)

    def take(self, rows: Ints | Bools) -> "RecordTable":
        """Some of the rows, by position or by mask."""
        positions: NDArray[Any] = np.flatnonzero(rows) if rows.dtype == bool else rows
        return replace(self, **{name: _rows_of(column, positions) for name, column in self.columns().items()})

    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns by name."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return {name: column for name, column in columns.items() if column is not None}

    @staticmethod
    def join(tables: "Sequence[RecordTable]") -> "RecordTable":
        """The rows of several tables, one after another; without pairs, levels and reference models."""
        tables = tables or [RecordTable.from_columns(np.empty(0), np.empty(0, dtype=bool))]
        names = [name for name in tables[0].columns() if name not in {"pair", "level", "reference"}]
        return RecordTable(**{name: _joined([getattr(table, name) for table in tables]) for name in names})


def _rows_of(column: NDArray[Any], positions: NDArray[Any]) -> NDArray[Any]:
    single = column.strides == (0,) and len(column) > 0
    return np.broadcast_to(column[:1], len(positions)) if single else column[positions]


def _joined(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Columns one after another; a single value stays one."""
    filled = [column for column in columns if len(column)]
    if filled and all(column.strides == (0,) and column[0] == filled[0][0] for column in filled):
        return np.broadcast_to(filled[0][:1], sum(map(len, filled)))
    return np.concatenate(filled or columns[:1])


@overload
def measure(records: RecordTable) -> MembershipMetrics: ...
@overload
def measure(records: RecordTable, by: str) -> dict[Any, MembershipMetrics]: ...
def measure(records: RecordTable, by: str | None = None) -> MembershipMetrics | dict[Any, MembershipMetrics]:
    """Balanced accuracy, AUC, true positive rates at low false positive rates, their intervals and what chance gives.

    Rates are NaN without members or without non-members.

    Args:
        records: of one attack, or with ``by="attack"`` of several.
        by: a column; then by each of its values, in the order in which they come. None: of all rows together.
    """
    if by is None:
        table = records
        metrics = membership_metrics(
            table.score, table.member, table.weight, threshold=table.threshold, pair=table.pair, level=table.level
        )
        called = table.exact[table.score > table.threshold]
        return replace(metrics, exact=float(called.mean())) if called.any() else metrics
    number, values = pd.factorize(getattr(records, by))
    rows = np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number))[:-1])
    # An empty table has no value, and one empty part.
    return {value: measure(records.take(part)) for value, part in zip(values.tolist(), rows, strict=False)}


def matching_weights(wanted: NDArray[Any], stratum: Ints) -> Floats:
    """Weights (m,) that give records of each of S strata the total ``wanted`` (S,), by the stratum (m,) of each.

    Members and non-members must be of one mix of groups and labels, or an attack would be credited with recognising
    these: each non-member of a stratum counts as members of it are there for each non-member.
    """
    return (wanted / np.maximum(1, np.bincount(stratum, minlength=len(wanted))))[stratum]


def mean_metrics(fits: Sequence[MembershipMetrics]) -> MembershipMetrics:
    """The metrics of the first of several fits of an attack, with accuracy and interval averaged over them.

    The intervals are of the same members, so their mean is no narrower than that of the mean accuracy.
    """
    averaged = ("accuracy", "low", "high", "null_high")
    return replace(fits[0], **{name: float(np.mean([getattr(fit, name) for fit in fits])) for name in averaged})


def views_within(view: View) -> tuple[View, ...]:
    """A view and all that see less: their attacks are the view's too.

    >>> views_within(CLIENT)
    ('outsider', 'client')
    """
    return VIEWS[: VIEWS.index(view) + 1]


def rank_attacks_for_view(
    view: View, needed: Mapping[str, View], order: Iterable[str], measured: Mapping[str, MembershipMetrics]
) -> list[str]:
    """The attacks that a view can carry out, the one that is chosen beforehand first.

    For an outsider it is the first of ``order``. For a wider view it is its own exact attack (`CHOSEN_OF_VIEW`) where
    that finds itself exact, which no member is needed for and no null run does; else its joint attack
    (`JOINT_OF_VIEW`), where the lower end of its AUC's interval, kept at once by two, is above 0.5. Either only if its
    AUC is not below that of what decides for the narrower view. Elsewhere it is what decides for the narrower view: so
    a wider view's AUC is never the lower one.

    Args:
        view: of the attacker.
        needed: the view that each attack needs, by the attack's name.
        order: in which attacks are chosen beforehand.
        measured: what each finds, by its name.

    Example:
        >>> import numpy as np
        >>> from shoal.audit.record_table import RecordTable, rank_attacks_for_view, measure
        >>> member = np.arange(400) < 200
        >>> blind = measure(RecordTable.from_columns(1.0 * (np.arange(400) % 2), member))
        >>> exact = measure(RecordTable.from_columns(1.0 * member, member, exact=True))
        >>> needed, order = {"loss": "outsider", "rmia": "outsider", "span-models": "client"}, ["rmia", "loss"]
        >>> rank_attacks_for_view("client", needed, order, {"loss": blind, "rmia": blind, "span-models": exact})
        ['span-models', 'loss', 'rmia']
        >>> rank_attacks_for_view("client", needed, order, {"loss": blind, "rmia": blind, "span-models": blind})
        ['rmia', 'loss', 'span-models']
    """
    names, first = list[str](), list[str]()
    for seen in views_within(view):
        if names:
            # What decides for the narrower view.
            first = [strongest({name: measured[name] for name in names})[0]]
        inside = [name for name, needs in needed.items() if needs in views_within(seen) and name in measured]
        first = first or [name for name in order if name in inside][:1]
        for own, decides in ((CHOSEN_OF_VIEW.get(seen), _exact), (JOINT_OF_VIEW.get(seen), _above_chance)):
            if own in inside and decides(measured[own]):
                first = [own] if all(measured[own].auc >= measured[name].auc for name in first) else first
                break
        names = [*dict.fromkeys((*first, *inside))]
    return names


def _exact(metrics: MembershipMetrics) -> bool:
    return metrics.exact >= 0.5 and not np.isnan(metrics.accuracy)


def _above_chance(metrics: MembershipMetrics) -> bool:
    return metrics.auc - at_once(2) * (metrics.auc - metrics.auc_low) > 0.5


def strongest(attacks: Mapping[str, MembershipMetrics]) -> tuple[str, float]:
    """The attack that decides how exposed records are, of all that were made on the same records.

    The largest of many figures is above chance where nothing is leaked. So the first measured attack decides, which was
    chosen beforehand, unless the AUC of another is certain to be above 0.5 and above the first's. It is certain by the
    lower end of an interval that all attacks keep at once (`at_once`). Where several do, it is the one of highest lower
    end. The AUC decides, since the balanced accuracy depends on how well a threshold is set without members.

    Returns:
        The attack, and the lower end of its balanced accuracy that it is judged by: the first's own, or that of all.

    Example:
        >>> import numpy as np
        >>> from shoal.audit.record_table import RecordTable, measure, strongest
        >>> member = np.arange(400) < 200
        >>> calls = [member, np.where(np.arange(400) % 20 == 0, ~member, member), np.arange(400) % 2 == 0]
        >>> perfect, good, blind = (measure(RecordTable.from_columns(1.0 * call, member)) for call in calls)
        >>> strongest({"a": blind, "b": good, "c": perfect})[0], strongest({"b": good, "a": blind})[0]
        ('c', 'b')
    """
    measured = {name: metrics for name, metrics in attacks.items() if not np.isnan(metrics.accuracy)}
    if not measured:
        return next(iter(attacks)), np.nan
    wider = at_once(len(measured))
    first, *further = measured
    low = {name: attacks[name].auc - wider * (attacks[name].auc - attacks[name].auc_low) for name in further}
    certain = [name for name in further if low[name] > max(0.5, attacks[first].auc)]
    best = max(certain, key=lambda name: low[name], default=first)
    if best == first:
        return first, attacks[first].low
    return best, attacks[best].accuracy - wider * (attacks[best].accuracy - attacks[best].low)
