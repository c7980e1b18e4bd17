"""The progress of an audit, and what it prints."""

from math import isnan

from rich.console import Console

from shoal.audit.audit import Audit
from shoal.core.formats import decimal, percent
from shoal.reports.estimate import null_size
from shoal.runs.progress import LiveBar


class AuditDisplay(LiveBar):
    """Shows how many reference federations are trained: live on a terminal, elsewhere a line for each."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "reference federation", refresh_per_second=4)

    def __call__(self, done: int, count: int) -> None:
        """Show where the audit stands; the signature is `shoal.runs.audits.AuditWatch`."""
        self.reference_federations(done, count)


def in_words(audit: Audit) -> str:
    """What the attack that decides finds, on all records and on each group: a line each."""
    lines = []
    for name, (scope, of) in {"all": ("all", "all"), **{group: ("group", group) for group in audit.groups}}.items():
        row = audit.strongest(scope, of)
        if isnan(row["accuracy"]):
            lines.append(f"{name}: nothing can be said, since its records are of one kind only")
            continue
        interval = f"{decimal(row['accuracy.low'])} to {decimal(row['accuracy.high'])}"
        chosen = "chosen beforehand" if row["chosen"] else "certain to find more than the attack chosen beforehand"
        line = f"{name}: {row['attack']}, {chosen}, has balanced accuracy {decimal(row['accuracy'])} ({interval}; "
        line += f"chance: 0.500{null_size(row['accuracy.null_high'])}), AUC {decimal(row['auc'])}"
        if isnan(row["tpr_at_fpr_0.01"]):
            line += f"; too few non-members ({row['non_members']}) for a rate at 1 % false positives"
        else:
            line += f", finds {percent(row['tpr_at_fpr_0.01'])} of the members at 1 % false positives"
        lines.append(line)
    return "\n".join(lines)
