"""The table of attacked records, and the function that measures membership attacks.

Property inference also uses `RecordTable`; its "members" are the updates with the property.
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
"""The views of an attacker, from the narrowest to the widest; `VIEWS` lists them."""

CHOSEN_OF_VIEW: Mapping[View, str] = {CLIENT: "span-models", SERVER: "span"}
"""Each view's exact attack, chosen if it claims certainty for at least half of its predicted members."""

JOINT_OF_VIEW: Mapping[View, str] = {CLIENT: "joint-models", SERVER: "joint"}
"""Each view's joint attack, chosen if its AUC is significantly above 0.5 and the exact attack is not chosen."""

AGAINST_CLIENTS = "-others"
"""The suffix of attacks whose non-members are other clients' examples."""


@dataclass(frozen=True, eq=False)
class RecordTable:
    """A table with one row per record, attacked model and attack.

    Every column is an array (M,), except ``reference``.

    Args:
        score: the attack's score, higher for members.
        member: whether the model was trained on the record.
        threshold: the score above which the attack predicts a member.
        client: the name or number of the record's client; `NOBODY` means no client.
        group: the name or number of the client's group.
        model: the name or number of the attacked model or update.
        view: the narrowest `View` that can run the attack.
        pair: the pair number of each row, or ``None`` if rows are independent. A pair is a member and a non-member.
        exact: whether the attack claims certainty for the record.
        level: the record's level (`record_levels`), for thresholds per record, or ``None`` if unknown.
        reference: the attack's scores on each of R reference models, (M, R), or ``None`` if the scores are
            unknown.

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
        """Create a table from columns (M,), or from scalars that apply to all rows.

        If ``member`` is missing, `AuditRecords.rows_of` must add it before a measurement.
        """
        columns = [score, member, threshold, weight, record, client, group, model, attack, view, exact]
        rows = (np.broadcast_to(np.asarray(column), np.shape(score)) for column in columns)
        return RecordTable(*rows, pair=pair, level=level, reference=reference)

    def __len__(self) -> int:
        return len(self.score)

    def take(self, rows: Ints | Bools) -> "RecordTable":
        """Select rows by position or by a mask."""
        positions: NDArray[Any] = np.flatnonzero(rows) if rows.dtype == bool else rows
        return replace(self, **{name: _rows_of(column, positions) for name, column in self.columns().items()})

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return the columns that are not ``None``, by name."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        return {name: column for name, column in columns.items() if column is not None}

    @staticmethod
    def join(tables: "Sequence[RecordTable]") -> "RecordTable":
        """Concatenate tables, without the columns ``pair``, ``level`` and ``reference``."""
        tables = tables or [RecordTable.from_columns(np.empty(0), np.empty(0, dtype=bool))]
        names = [name for name in tables[0].columns() if name not in {"pair", "level", "reference"}]
        return RecordTable(**{name: _concatenate([getattr(table, name) for table in tables]) for name in names})


def _rows_of(column: NDArray[Any], positions: NDArray[Any]) -> NDArray[Any]:
    single = column.strides == (0,) and len(column) > 0
    return np.broadcast_to(column[:1], len(positions)) if single else column[positions]


def _concatenate(columns: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate columns; columns broadcast from the same value stay broadcast."""
    filled = [column for column in columns if len(column)]
    if filled and all(column.strides == (0,) and column[0] == filled[0][0] for column in filled):
        return np.broadcast_to(filled[0][:1], sum(map(len, filled)))
    return np.concatenate(filled or columns[:1])


@overload
def measure(records: RecordTable) -> MembershipMetrics: ...
@overload
def measure(records: RecordTable, by: str) -> dict[Any, MembershipMetrics]: ...
def measure(records: RecordTable, by: str | None = None) -> MembershipMetrics | dict[Any, MembershipMetrics]:
    """Measure the balanced accuracy, the AUC and true positive rates of a membership attack, with intervals.

    Rates are NaN without members or without non-members.

    Args:
        by: the column to group the rows by, such as "attack", or ``None`` to measure all rows together.
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
    """Return weights (m,) that sum to ``wanted[s]`` in stratum s, for each of S strata."""
    return (wanted / np.maximum(1, np.bincount(stratum, minlength=len(wanted))))[stratum]


def mean_metrics(fits: Sequence[MembershipMetrics]) -> MembershipMetrics:
    """Return the metrics of an attack's first fit, with the accuracy and its interval averaged over all fits.

    The mean interval is conservative, since all fits have the same members.
    """
    averaged = ("accuracy", "low", "high", "null_high")
    return replace(fits[0], **{name: float(np.mean([getattr(fit, name) for fit in fits])) for name in averaged})


def views_within(view: View) -> tuple[View, ...]:
    """Return a view and all narrower views.

    >>> views_within(CLIENT)
    ('outsider', 'client')
    """
    return VIEWS[: VIEWS.index(view) + 1]


def rank_attacks_for_view(
    view: View, needed: Mapping[str, View], order: Iterable[str], measured: Mapping[str, MembershipMetrics]
) -> list[str]:
    """Return the attacks that a view can carry out, the chosen attack first.

    For an outsider, the chosen attack is the first of ``order``. For a wider view, the deciding attack of the narrower
    view is replaced by a candidate with at least the same AUC. The candidate is the attack of `CHOSEN_OF_VIEW`, or else
    of `JOINT_OF_VIEW`, if its condition holds.

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
            # The deciding attack of the narrower view.
            first = [strongest({name: measured[name] for name in names})[0]]
        inside = [name for name, needs in needed.items() if needs in views_within(seen) and name in measured]
        first = first or [name for name in order if name in inside][:1]
        for attack in (CHOSEN_OF_VIEW.get(seen), JOINT_OF_VIEW.get(seen)):
            if attack not in inside:
                continue
            metrics = measured[attack]
            decides = metrics.auc - at_once(2) * (metrics.auc - metrics.auc_low) > 0.5
            if attack == CHOSEN_OF_VIEW.get(seen):
                decides = metrics.exact >= 0.5 and not np.isnan(metrics.accuracy)
            if decides:
                first = [attack] if all(metrics.auc >= measured[name].auc for name in first) else first
                break
        names = [*dict.fromkeys((*first, *inside))]
    return names


def strongest(attacks: Mapping[str, MembershipMetrics]) -> tuple[str, float]:
    """Return the attack that decides the exposure of records, and the lower end of its balanced accuracy.

    By default the first measured attack decides, because the maximum over many attacks is above chance even without a
    leak. A different attack decides if its AUC's lower end is above 0.5 and above the first attack's AUC. If several
    attacks qualify, the attack with the highest lower end decides. The intervals are simultaneous for all attacks
    (`at_once`).

    Returns:
        The attack's name, and the lower end of its balanced accuracy.

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
