"""The progress of an audit, and what it prints."""

import time
from math import isnan

from rich.console import Console

from shoal.cli.progress import LiveBar
from shoal.reports.formats import decimal, format_duration, percent
from shoal.runs.gate import Gate
from shoal.simulation.audit import Audit


class AuditDisplay(LiveBar):
    """Shows how many reference federations are trained: live on a terminal, elsewhere a line for each."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "reference federation", refresh_per_second=4)
        self._stored: int | None = None

    def __call__(self, done: int, count: int) -> None:
        """Show where the audit stands; the signature is `shoal.runs.audit.AuditWatch`."""
        if self._stored is None:
            # Those of an earlier audit took no time now, so they say nothing of the time left.
            self._began, self._stored = time.perf_counter(), done
        trained = done - self._stored
        each = (time.perf_counter() - self._began) / max(1, trained)
        left = f"about {format_duration(each * (count - done))} left" if trained > 0 and done < count else ""
        self._bar.update(self._task, total=count, completed=done, left=left)
        if self._console.is_terminal or done == 0:
            return
        line = f"reference federation {done} of {count}{f'; {left}' if left else ''}"
        if trained == 0:
            line = f"{done} of {count} reference federations are there already"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


def in_words(audit: Audit) -> str:
    """What the strongest attack finds, on all records and on each group: a line each."""
    lines = []
    for name, (scope, of) in {"all": ("all", "all"), **{group: ("group", group) for group in audit.groups}}.items():
        row = audit.strongest(scope, of)
        if isnan(row["accuracy"]):
            lines.append(f"{name}: nothing can be said, since its records are of one kind only")
            continue
        interval = f"{decimal(row['accuracy.low'])} to {decimal(row['accuracy.high'])}"
        line = f"{name}: {row['attack']} has balanced accuracy {decimal(row['accuracy'])} ({interval}), "
        line += f"AUC {decimal(row['auc'])}"
        if isnan(row["tpr_at_fpr_0.01"]):
            line += f"; too few non-members ({row['non_members']}) for a rate at 1 % false positives"
        else:
            line += f", finds {percent(row['tpr_at_fpr_0.01'])} of the members at 1 % false positives"
        lines.append(line)
    return "\n".join(lines)


def gate_in_words(gate: Gate, broken: dict[str, float]) -> str:
    """Whether a gate holds."""
    if not broken:
        return f"Gate {gate}: holds"
    worst = max(broken, key=lambda key: broken[key])
    more = f" and {len(broken) - 1} more" if len(broken) > 1 else ""
    return f"Gate {gate}: broken by {worst}{more}, whose upper end is {broken[worst]:.3f}"
