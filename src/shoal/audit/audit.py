"""Audits of records: every attack's metrics by group, model and client."""

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import isnan, nan
from typing import Any

import numpy as np
import pandas as pd

from shoal.attacks import BaVarIA, LiRA, ReferenceAttack, client_scores
from shoal.audit.attacked_records import REFERENCE_ATTACKS, AttackedRecords, AuditRecords, attack_records
from shoal.audit.finding import (
    FIELDS,
    METRICS,
    exposure_summary,
    findings,
    findings_table,
    headline,
    most_exposed,
    rows_of,
    rows_of_view,
)
from shoal.audit.record_exposure import record_exposure
from shoal.audit.record_table import (
    AGAINST_CLIENTS,
    CHOSEN_OF_VIEW,
    CLIENT,
    RecordTable,
    measure,
    rank_attacks_for_view,
    strongest,
    views_within,
)
from shoal.core.errors import require_instance
from shoal.core.formats import one_line
from shoal.core.randomness import Stream
from shoal.data.preferences import VIEWS, View
from shoal.metrics import MembershipMetrics, empirical_epsilon
from shoal.metrics.intervals import at_once

ATTACK_COLUMNS = (
    "view", "attack", "scope", "name", "members", "non_members", "exact",
    *(column for metric in METRICS for column in (metric, f"{metric}.low", f"{metric}.high")),
    "accuracy.null_high", "chosen", "strongest", "title",
)  # fmt: skip
"""The columns of `Audit.attacks`."""

VIEW_METRICS = ("accuracy", "auc", "tpr_at_fpr_0.01")
"""The metrics of each view in audit.json."""

RECORD_COLUMNS = ("record", "client", "group", "member", "score", "exposure", "exposure.low")
"""The columns of `Audit.records`."""


@dataclass(frozen=True, eq=False)
class Audit:
    """The results of an audit.

    Args:
        attacks: a table with one row per attack and scope, with `ATTACK_COLUMNS`. A scope is "all", a "group", an
            attacked "model" or a "client". A client has one row, for the strongest attack. A metric that was not
            measured is NaN. "exact" is the fraction of predicted members for which the attack claims certainty.
            "accuracy.null_high" is the 95 % quantile of the balanced accuracy if nothing is leaked. "view" is the
            `View` that the attack needs. "chosen" marks the attack chosen for a view without knowledge of the attacked
            model's members. "strongest" marks the attack that decides the scope's exposure; see `Audit.strongest`.
            "other_clients" is 1 if non-members may belong to other clients.
        records: a table with one row per record and the columns `RECORD_COLUMNS`, the most exposed record first. A row
            holds the strongest attack's score, and the record's exposure by `record_exposure`.
        empirical_epsilon: a lower bound, at 95 % confidence, on the epsilon of per-record (epsilon, delta)-differential
            privacy. The bound uses the attack chosen for an outsider, and assumes independent records.
        delta: the delta of the empirical epsilon.
        guesses: the keys and values of audit.json from attacks that do not infer membership, such as source inference.
        notes: caveats about the records, as sentences without a full stop.
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
    notes: Sequence[str] = ()
    __repr__ = one_line

    def __str__(self) -> str:
        """Return the answer in five lines: the three most exposed findings, and a summary of all."""
        found = findings(self.attacks)
        return "\n".join([*findings_table(most_exposed(found)[:3]), exposure_summary(found)])

    def _repr_html_(self) -> str:
        rows = pd.DataFrame([self.strongest(*scope) for scope in self._scopes().values()])
        shown = rows[["name", "view", "attack", "members", "non_members", *METRICS, "accuracy.null_high"]]
        return shown.to_html(float_format="{:.3f}".format, na_rep="", index=False)

    def mark_other_clients(self, note: str) -> "Audit":
        """Return the audit with a note that non-members may belong to other clients.

        In the returned audit, records count as exposed only if the attack claims certainty.
        """
        return replace(self, attacks=self.attacks.assign(other_clients=1), notes=(*dict.fromkeys((*self.notes, note)),))

    def strongest(self, scope: str = "all", name: str = "all") -> Mapping[Hashable, Any]:
        """Return the row of the attack that decides a scope's exposure.

        The attack chosen by `attack_records` decides, unless a different attack is significantly stronger. The row's
        metrics are NaN if the scope has only members or only non-members.
        """
        rows = self.attacks[(self.attacks["scope"] == scope) & (self.attacks["name"] == name)]
        return rows_of(rows[rows["strongest"].astype(bool)])[0]

    def headline(self, view: View, scope: str = "all", name: str = "all") -> Mapping[Hashable, Any] | None:
        """Return the row of the attack that decides a scope's exposure to a view."""
        return headline(self.attacks, view, scope, name)

    @property
    def groups(self) -> list[str]:
        """The names of the groups that have records."""
        return self.attacks.loc[self.attacks["scope"] == "group", "name"].unique().tolist()

    def flat(self) -> dict[str, float | str]:
        """Return the keys and values of audit.json, without unmeasured values."""
        flat = self.figures()
        for view, (name, scope) in product(VIEWS, self._scopes().items()):
            if (found := self.headline(view, *scope)) is not None:
                decides = dict(found)
                flat[f"views.{view}.{name}.attack"] = str(decides["attack"])
                rows = rows_of_view(self.attacks, view, *scope).values()
                decides |= {f"{metric}.at_least": _at_least(rows, metric) for metric in VIEW_METRICS}
                flat |= _figures(f"views.{view}.{name}", decides, VIEW_METRICS, ("", ".low", ".high", ".at_least"))
        best = {name: self.strongest(*scope) for name, scope in self._scopes().items()}
        flat |= {f"strongest.{name}": str(row["attack"]) for name, row in best.items() if not np.isnan(row["accuracy"])}
        flat |= {"references": self.references, "members": self.members, "non_members": self.non_members}
        if not np.isnan(self.empirical_epsilon):
            flat |= {"empirical_epsilon": self.empirical_epsilon, "empirical_epsilon.delta": self.delta}
        return {**flat, **self.guesses}

    def figures(self) -> dict[str, float | str]:
        """Return the metrics of audit.json whose keys begin with ``attacks``."""
        figures: dict[str, float | str] = {}
        for row in rows_of(self.attacks[self.attacks["scope"].isin(["all", "group"])]):
            key = f"attacks.{row['attack']}.{row['name']}"
            figures |= _figures(key, row, METRICS, ("", ".low", ".high", ".null_high"))
            if row["attack"] in CHOSEN_OF_VIEW.values() and not isnan(row["exact"]):
                figures[f"{key}.exact"] = row["exact"]
        return figures

    def _scopes(self) -> dict[str, tuple[str, str]]:
        return {"all": ("all", "all"), **{name: ("group", name) for name in self.groups}}


def _figures(
    key: str, row: Mapping[Hashable, Any], metrics: Iterable[str], ends: Sequence[str]
) -> dict[str, float | str]:
    """Return the measured values in a row of `Audit.attacks`, by their key in audit.json."""
    columns = (f"{metric}{end}" for metric, end in product(metrics, ends))
    return {f"{key}.{name}": row[name] for name in columns if name in row and not np.isnan(row[name])}


def _at_least(rows: Iterable[Mapping[Hashable, Any]], metric: str) -> float:
    """Return the largest lower end of the attacks' simultaneous intervals, or NaN without attacks."""
    known = [(row[metric], row[f"{metric}.low"]) for row in rows if not isnan(row[metric])]
    return max((value - at_once(len(known)) * (value - low) for value, low in known), default=nan)


def audit_records(
    records: AuditRecords,
    stream: Stream,
    *,
    attacks: Sequence[ReferenceAttack] = REFERENCE_ATTACKS,
    delta: float = 1e-5,
) -> Audit:
    """Attack ``records`` with every attack that their scores allow.

    Thresholds come from `reference_thresholds`.

    Args:
        records: the attacked records, with at least two members and two non-members.
        stream: the random stream for the empirical epsilon and for `record_exposure`.
        delta: the delta of the empirical epsilon.

    Raises:
        InputError: there are fewer than two members or fewer than two non-members.

    Example:
        >>> import numpy as np
        >>> import shoal
        >>> draw, member, one_model = np.random.default_rng(0), np.arange(200) < 100, np.zeros(200, dtype=np.int64)
        >>> trained = draw.random((200, 8)) < 0.5
        >>> score, reference = draw.normal(2.0 * member), draw.normal(2.0 * trained)
        >>> scores = shoal.ReferenceScores(score, member, reference, trained, one_model)
        >>> names, all_of_one = np.arange(200).astype(object), np.full(200, "all", dtype=object)
        >>> audit = shoal.audit_records(shoal.AuditRecords(scores, names, all_of_one, all_of_one), shoal.Stream(0))
        >>> audit.strongest()["accuracy"] > 0.7, audit.attacks["attack"].nunique(), audit.flat()["references"]
        (True, 8, 8)
        >>> dict(audit.omitted)
        {'other-clusters': 'there is only one model'}
    """
    require_instance("records", records, AuditRecords, "such as AuditRecords(scores, record, client, group)")
    attacked = attack_records(records, attacks)
    views = attacked.views
    rows, metrics = scope_rows("all", "all", attacked.on_all, views, attacked.order), attacked.on_all
    decisive, _ = strongest(metrics)
    for scope in ("group", "model"):
        for name, metrics in attacked.measured(scope).items():
            rows += scope_rows(scope, str(name), metrics, views, attacked.order)
    for name, client in measure(attacked.attacks[decisive], by="client").items():
        chosen = decisive == attacked.order[0]
        rows.append(attack_row("client", str(name), decisive, views[decisive], client, chosen=chosen, strongest=True))
    beforehand, member = attacked.attacks[attacked.order[0]], records.scores.member
    return Audit(
        attacks=attack_table(rows, {attack.name: attack.title for attack in attacks}),
        records=_records(records, attacked.attacks[decisive], stream("records")),
        references=attacked.references,
        members=int(member.sum()),
        non_members=int((~member).sum()),
        empirical_epsilon=empirical_epsilon(beforehand.score, member, stream("epsilon"), delta=delta),
        delta=delta,
        omitted=attacked.omitted,
        guesses=_client_membership(attacked),
        notes=records.notes,
    )


def _client_membership(attacked: AttackedRecords) -> dict[str, float]:
    """Measure how well an outsider or another client can tell which clients took part.

    A client's members stand for a client that took part; the paired non-members stand for an absent client.
    """
    values: dict[str, float] = {}
    for view in views_within(CLIENT):
        table = attacked.attacks[attacked.chosen(view)]
        candidate, score = client_scores(table.score, 2 * pd.factorize(table.client)[0] + table.member)
        both = np.isin(candidate ^ 1, candidate)
        found = measure(RecordTable.from_columns(score[both], candidate[both] % 2 == 1, pair=candidate[both] // 2))
        ends = {
            "auc": found.auc,
            "auc.low": found.auc_low,
            "auc.high": found.auc_high,
            "clients": float(both.sum() / 2),
        }
        values |= {f"client-membership.{view}.{end}": value for end, value in ends.items() if not np.isnan(found.auc)}
    return values


def attack_table(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> pd.DataFrame:
    """Create the table `Audit.attacks`."""
    table = pd.DataFrame(rows, columns=[*ATTACK_COLUMNS])
    return table.assign(title=table["attack"].map(titles).fillna(""))


def _records(records: AuditRecords, decisive: RecordTable, stream: Stream) -> pd.DataFrame:
    """`Audit.records`."""
    exposure, low = record_exposure(records.scores, stream, pair=records.pair)
    score = decisive.score
    if len(decisive) < len(records):
        # Some records have no score.
        score = pd.Series(score, index=decisive.record).reindex(records.record).to_numpy()
    columns = {name: getattr(records, name) for name in ("record", "client", "group")}
    columns |= {"member": records.scores.member, "score": score}
    listed = pd.DataFrame({**columns, "exposure": exposure, "exposure.low": low})
    by = "score" if listed["exposure"].isna().all() else "exposure"
    return listed.sort_values(by, ascending=False, kind="stable", ignore_index=True)


def scope_rows(
    scope: str,
    name: str,
    metrics: Mapping[str, MembershipMetrics],
    views: Mapping[str, View],
    order: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Create the rows of `Audit.attacks` for one scope, such as a group.

    Args:
        metrics: the attacks' metrics by the attack's key, the chosen attack first.
        views: the view that each attack needs, by the attack's key.
        order: `AttackedRecords.order`; by default the order of ``metrics``.
    """
    decisive, _ = strongest(metrics)
    measured = {name: found for name, found in metrics.items() if not np.isnan(found.accuracy)}
    first = (rank_attacks_for_view(view, views, order or [*metrics], measured)[:1] for view in VIEWS)
    chosen = {attack for attacks in first for attack in attacks} or {decisive}
    return [
        attack_row(scope, name, attack, view, metrics[attack], chosen=attack in chosen, strongest=attack == decisive)
        for attack, view in views.items()
    ]


def attack_row(
    scope: str, name: str, attack: str, view: View, metrics: MembershipMetrics, *, chosen: bool, strongest: bool
) -> dict[str, Any]:
    """Create a row of `Audit.attacks`."""
    row: dict[str, Any] = {"view": view, "attack": attack, "scope": scope, "name": name}
    return row | {
        "chosen": chosen,
        "strongest": strongest,
        **{key: getattr(metrics, field) for key, field in FIELDS.items()},
    }


_AUC = re.compile(r"attacks\.([^.]+)\.(.+)\.auc")

TWO_SIDED = (LiRA.name, BaVarIA.name)
"""Attacks that fit separate IN and OUT distributions, so a wrong sign of the scores does no harm."""


def wrong_sign(audit: Mapping[str, float | str]) -> dict[str, str]:
    """Find attacks with an AUC significantly below chance, such as losses used as scores.

    The AUCs' intervals are simultaneous for all attacks and groups (Bonferroni). Attacks on a client that left are
    excluded, because forgetting may make the client's examples less probable than non-members.

    Returns:
        A description of the error by the AUC's key in audit.json, the lowest AUC first.

    Example:
        >>> from shoal.audit.audit import wrong_sign
        >>> key = "attacks.loss.all.auc"
        >>> wrong_sign({key: 0.06, f"{key}.low": 0.04, f"{key}.high": 0.08})[key]
        'loss on all has an AUC of 0.060 (0.040 to 0.080), below chance: its scores may have the wrong sign'
    """
    asked = [match for key in audit if (match := _AUC.fullmatch(key)) and match[1] not in TWO_SIDED]
    asked = [match for match in asked if not match[1].endswith(AGAINST_CLIENTS) and match[2] != "leaver"]
    found: dict[str, str] = {}
    for key, attack, group in sorted(((each[0], each[1], each[2]) for each in asked), key=lambda each: audit[each[0]]):
        auc, low, high = (float(audit.get(f"{key}{end}", nan)) for end in ("", ".low", ".high"))
        if auc + at_once(len(asked)) * (high - auc) < 0.5:
            found[key] = (
                f"{attack} on {group} has an AUC of {auc:.3f} ({low:.3f} to {high:.3f}), below chance: "
                "its scores may have the wrong sign"
            )
    return found
