"""The progress of a run: live on a terminal, one line per round elsewhere; then that of its reference federations."""

import math
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from shoal.control import DIRECTIVE_COLUMN
from shoal.core.formats import format_duration
from shoal.engine import RoundReport
from shoal.models import metric_name
from shoal.simulation.play import SimulationState
from shoal.simulation.round_metrics import became_unmet, changed_directives
from shoal.simulation.simulation import Simulation


class LiveBar:
    """A context manager that shows progress: a live bar on a terminal, lines elsewhere.

    Args:
        console: the output.
        unit: the counted thing, such as "round".
        refresh_per_second: of the terminal.
        current: function that returns the bar to draw; None: its methods update it.
    """

    def __init__(
        self, console: Console, unit: str, refresh_per_second: int = 4, current: Callable[[], Progress] | None = None
    ) -> None:
        self._console = console
        unit_column, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
        self._bar = Progress(unit_column, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), left)
        self._task = self._bar.add_task(unit, total=None, left="")
        self._live = Live(
            self._bar, get_renderable=current, console=console, transient=True, refresh_per_second=refresh_per_second
        )
        self._began = time.perf_counter()
        self._before = 0.0
        self._stored: int | None = None

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def reference_federations(self, done: int, count: int) -> None:
        """Show the number of trained reference federations, as a `shoal.replay.reference_store.AuditWatch`."""
        if self._stored is None:
            # Stored ones took no time now, so the estimate of the time left ignores them.
            self._began, self._stored = time.perf_counter(), done
            self._bar.reset(self._task, total=count, description="reference federation", left="")
        trained = done - self._stored
        pace = (time.perf_counter() - self._began) / max(1, trained)
        left = f"about {format_duration(pace * (count - done))} left" if trained > 0 and done < count else ""
        self._bar.update(self._task, completed=done, left=left)
        if self._console.is_terminal or done == 0:
            return
        line = f"reference federation {done} of {count}{f'; {left}' if left else ''}"
        if trained == 0:
            line = f"{done} of {count} reference federations are there already"
        self._print(line)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class Display(LiveBar):
    """A context manager that shows the rounds of a run, as its watch."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "round")

    def trial(self, clusters: int, most: int) -> None:
        """Show which trial of ``clusters = "auto"`` begins."""
        text = f"trial with {clusters} of up to {most} clusters"
        self._bar.update(self._task, description=text)
        if not self._console.is_terminal:
            self._print(text)

    def __call__(self, simulation: Simulation, progress: SimulationState, report: RoundReport | None) -> None:
        """Show where the run stands; the signature is `simulation.Watch`."""
        done = progress.state.round
        if report is None:
            self._began, self._before = time.perf_counter(), done
            self._bar.update(self._task, total=simulation.last_round, completed=done, description="round")
            return
        pace = (time.perf_counter() - self._began) / max(1, done - self._before)
        left = f"about {format_duration(pace * (simulation.last_round - done))} left"
        if simulation.reference_federations:
            left += f", and {simulation.reference_federations} reference federations"
        self._bar.update(self._task, completed=done, left=left)
        if self._console.is_terminal:
            self._live.update(Group(self._bar, _cluster_table(simulation, progress)))
            for k in became_unmet(progress.rows):
                self._print(f"round {done}: {_unmet(k)}")
        else:
            self._print(f"round {done} of {simulation.last_round}: {_round_sentence(simulation, progress)}; {left}")


def default_display() -> Display | None:
    """Return a display in a terminal or a notebook, None elsewhere."""
    console = Console(stderr=True)
    return Display(console) if console.is_terminal or console.is_jupyter else None


def _metric(simulation: Simulation) -> str:
    return metric_name(simulation.model.metric_for(simulation.federation.classes))


def _round_sentence(simulation: Simulation, progress: SimulationState) -> str:
    """The clients, accuracy and risk of each cluster after a round."""
    rows = progress.rows[-len(progress.state.models) :]
    columns = {
        "clients": [str(int(row["clients"])) for row in rows],
        _metric(simulation): [_decimal(row["accuracy"]) for row in rows],
        "risk": [_decimal(row["risk"]) for row in rows],
    }
    directives = changed_directives(progress.rows)
    columns |= {f"directive {name}": [f"{strength:.2f}" for strength in values] for name, values in directives.items()}
    words = [f"{name} {' / '.join(cells)}" for name, cells in columns.items()]
    return ", ".join([*words, *map(_unmet, became_unmet(progress.rows))])


def _unmet(cluster: int) -> str:
    return f"cluster {cluster} cannot be brought within its members' limits"


def _decimal(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"


def _cluster_table(simulation: Simulation, progress: SimulationState) -> Table:
    groups = [simulation.federation.groups[g] for g in simulation.federation.groups_with_clients]
    table = Table(box=None, pad_edge=False)
    rows = progress.rows[-len(progress.state.models) :]
    directives = [column for column in rows[0] if column.startswith(DIRECTIVE_COLUMN)] if rows else []
    names = [column.removeprefix(DIRECTIVE_COLUMN) for column in directives]
    for title in ("cluster", "clients", *groups, _metric(simulation), "risk", *names):
        table.add_column(title, justify="right")
    for row in rows:
        counts = [str(int(row[column])) for column in ("cluster", "clients", *(f"clients.{name}" for name in groups))]
        strengths = [f"{row[column]:.2f}" for column in directives]
        table.add_row(*counts, _decimal(row["accuracy"]), _decimal(row["risk"]), *strengths)
    return table
