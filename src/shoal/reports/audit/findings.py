"""What each attack finds on each scope of an audit, as values with intervals."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Protocol

import pandas as pd

from shoal.audit.audit import rows_of
from shoal.audit.records import CHOSEN_OF_VIEW
from shoal.core.formats import capitalized, count
from shoal.metrics import least_non_members
from shoal.reports.attack_titles import BY, attack_head, attack_title
from shoal.reports.estimate import Estimate, at_chance

FALSE_POSITIVE_RATES = (0.01, 0.001)
"""Those that true positive rates are given at."""


@dataclass(frozen=True)
class Finding:
    """What one attack finds on the records of one scope: a row of `Audit.attacks`.

    Args:
        view, attack: the `View` that it needs, and its key in audit.json.
        scope, name: "all", "group", "model" or "client", and which.
        members, non_members: how many records of each kind.
        auc, accuracy: area under the ROC curve, and balanced accuracy.
        tpr: true positive rates by false positive rate, 0.01 and 0.001.
        null_high: the balanced accuracy that 95 % of such tests do not exceed where nothing is leaked.
        chosen: whether the attack was chosen beforehand, without the attacked model's members.
        strongest: whether it decides how exposed the scope's records are; see `Audit.strongest`.
        exact: of the records that a span attack calls members, the share on which it is exact; None: another attack.
        declared: the title that the attack declares; "": see `attack_title`.
    """

    view: str
    attack: str
    scope: str
    name: str
    members: int
    non_members: int
    auc: Estimate
    accuracy: Estimate
    tpr: Mapping[float, Estimate]
    null_high: float = nan
    chosen: bool = False
    strongest: bool = False
    exact: float | None = None
    declared: str = ""

    @staticmethod
    def of(row: Mapping[Any, Any]) -> "Finding":
        """The finding in a row of `Audit.attacks`."""
        return Finding(
            view=str(row["view"]),
            attack=str(row["attack"]),
            scope=str(row["scope"]),
            name=str(row["name"]),
            members=int(row["members"]),
            non_members=int(row["non_members"]),
            auc=Estimate.of(row, "auc"),
            accuracy=Estimate.of(row, "accuracy"),
            tpr={rate: Estimate.of(row, f"tpr_at_fpr_{rate:g}") for rate in FALSE_POSITIVE_RATES},
            null_high=float(row["accuracy.null_high"]),
            chosen=bool(row["chosen"]),
            strongest=bool(row["strongest"]),
            exact=float(row["exact"]) if row["attack"] in CHOSEN_OF_VIEW.values() else None,
            declared=title if isinstance(title := row.get("title"), str) else "",
        )

    @property
    def title(self) -> str:
        """What the attack is called within a sentence."""
        return self.declared or attack_title(self.attack)

    @property
    def by(self) -> str:
        """The title with who needs to carry it out."""
        return f"{self.title} by {BY.get(self.view, self.view)}"

    @property
    def head(self) -> str:
        """What it is called at the beginning of a line."""
        return capitalized(self.declared) if self.declared else attack_head(self.attack)

    @property
    def remark(self) -> str:
        """What to read its balanced accuracy by: its interval, and chance."""
        interval = f"95 % interval {self.accuracy.interval}; " if self.accuracy.interval else ""
        return interval + at_chance(self.null_high)

    def why_no_tpr(self, rate: float) -> str:
        """Why there is no true positive rate at a false positive rate."""
        needed = least_non_members(rate)
        few = f"too few non-members: {self.non_members:,}, "
        if self.non_members >= needed:
            return f"{few}unequally weighted; {count(needed)} alike are needed"
        return f"{few}{count(needed)} are needed"


class Attacked(Protocol):
    """What has the rows of `Audit.attacks`."""

    @property
    def attacks(self) -> pd.DataFrame:
        """See `Audit`."""
        ...


def judged_groups(audit: Attacked) -> tuple[dict[str, list[Finding]], list[Finding]]:
    """The findings on each group that attacks could be measured on, and those on all records.

    Where no single group could be measured, all records are one.
    """
    everything = findings(audit, "all")
    groups = {name: attempts for name, attempts in findings(audit, "group").items() if measured([attempts])}
    return groups or everything, next(iter(everything.values()), [])


def findings(audit: Attacked, scope: str) -> dict[str, list[Finding]]:
    """The findings on a scope by name, in the order of the names in the audit; of each, the one that decides first.

    The others follow by their balanced accuracy; attacks that were not measured there come last.
    """
    by_name: dict[str, list[Finding]] = {}
    for row in rows_of(audit.attacks[audit.attacks["scope"] == scope]):
        by_name.setdefault(str(row["name"]), []).append(Finding.of(row))

    def rank(finding: Finding) -> tuple[bool, float]:
        return not finding.strongest, _weakness(finding)

    return {name: sorted(attempts, key=rank) for name, attempts in by_name.items()}


def measured(scopes: Iterable[Sequence[Finding]]) -> list[Finding]:
    """The finding that decides about each name that has one, the most exposed name first."""
    return sorted((attempts[0] for attempts in scopes if attempts and attempts[0].accuracy.known), key=_weakness)


def _weakness(finding: Finding) -> float:
    return -finding.accuracy.value if finding.accuracy.known else 1.0
