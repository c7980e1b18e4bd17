"""A live display of a run on a terminal: rounds and time left, and each cluster's size, accuracy and risk."""

import math
import time
from collections.abc import Callable
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from shoal.engine import RoundReport
from shoal.reports.formats import format_duration
from shoal.simulation.simulation import Simulation, SimulationState


class LiveBar:
    """A progress bar that is live on a terminal while it is open."""

    def __init__(
        self, console: Console, unit: str, refresh_per_second: int, current: Callable[[], Progress] | None = None
    ) -> None:
        self._console = console
        left = TextColumn("{task.fields[left]}")
        self._bar = Progress(TextColumn(unit), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), left)
        self._task = self._bar.add_task(unit, total=None, left="")
        self._live = Live(
            self._bar, get_renderable=current, console=console, transient=True, refresh_per_second=refresh_per_second
        )
        self._began = time.perf_counter()
        self._before = 0.0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()


class Display(LiveBar):
    """Shows a run's progress while it is open; silent where the output is not a terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "round", refresh_per_second=4)

    def __call__(self, simulation: Simulation, progress: SimulationState, report: RoundReport | None) -> None:
        """Show where the run stands; the signature is `simulation.Watch`."""
        if not self._console.is_terminal:
            return
        done = progress.state.round
        if report is None:
            self._began, self._before = time.perf_counter(), done
            self._bar.update(self._task, total=simulation.rounds, completed=done)
            return
        each = (time.perf_counter() - self._began) / max(1, done - self._before)
        left = format_duration(each * (simulation.rounds - done))
        self._bar.update(self._task, completed=done, left=f"about {left} left")
        self._live.update(Group(self._bar, _clusters(simulation, progress)))


def _clusters(simulation: Simulation, progress: SimulationState) -> Table:
    groups = [simulation.federation.groups[g] for g in simulation.federation.groups_with_clients]
    table = Table(box=None, pad_edge=False)
    for title in ("cluster", "clients", *groups, "accuracy", "risk"):
        table.add_column(title, justify="right")
    for row in progress.rows[-len(progress.state.models) :]:
        accuracy = "-" if math.isnan(row["accuracy"]) else f"{row['accuracy']:.3f}"
        counts = [str(int(row[f"clients.{name}"])) for name in groups]
        table.add_row(str(int(row["cluster"])), str(int(row["clients"])), *counts, accuracy, f"{row['risk']:.3f}")
    return table
