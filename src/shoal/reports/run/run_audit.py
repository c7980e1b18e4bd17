"""The audit that a run's directory holds, on the run's page."""

from dataclasses import dataclass

import pandas as pd

from shoal.core.formats import DASH
from shoal.core.representation import one_line
from shoal.reports.audit.audit_verdict import verdict
from shoal.reports.audit.findings import judged_groups, measured
from shoal.reports.estimate import null_size


@dataclass(frozen=True, eq=False)
class RunAudit:
    """What was found of a run's final models after it; its page is audit.html, beside the run's.

    Args:
        attacks: the rows of audit.csv, which are those of `Audit.attacks`.
    """

    attacks: pd.DataFrame
    __repr__ = one_line

    @property
    def verdict(self) -> str:
        """As on the audit's page."""
        return verdict(*judged_groups(self))

    @property
    def key_metric(self) -> tuple[str, str, str]:
        """The exposure of the most exposed group: name, value and a remark."""
        groups, _ = judged_groups(self)
        worst = next(iter(measured(groups.values())), None)
        if worst is None:
            return ("Balanced accuracy", DASH, "of the audit's attacks: none could be measured")
        on = f" on {worst.name}, the most exposed group" if len(groups) > 1 else ""
        interval = f"; 95 % interval {worst.accuracy.interval}" if worst.accuracy.interval else ""
        return (
            "Balanced accuracy",
            worst.accuracy.text,
            f"audit, {worst.title}{on}{interval}; chance: 0.500{null_size(worst.null_high)}",
        )
