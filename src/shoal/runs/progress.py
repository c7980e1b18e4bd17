"""Progress of long commands: one line that updates on a terminal, or one line per ten percent in a log."""

import time
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from shoal.core.formats import decimal, format_duration
from shoal.engine import RoundReport
from shoal.models import metric_name
from shoal.simulation.play import SimulationState
from shoal.simulation.round_metrics import RoundRow, became_unmet
from shoal.simulation.simulation import Simulation


class LiveBar:
    """A progress bar on the console."""

    def __init__(self, console: Console, unit: str, *, lines: int = 10, refresh_per_second: int = 4) -> None:
        self._console, self._lines = console, lines
        what, remark = TextColumn("{task.description}"), TextColumn("{task.fields[remark]}", markup=False)
        self._bar = Progress(what, BarColumn(20), MofNCompleteColumn(), TimeElapsedColumn(), remark)
        self._task = self._bar.add_task(unit, total=None, remark="")
        self._live = Live(
            get_renderable=self._current, console=console, transient=True, refresh_per_second=refresh_per_second
        )
        self._unit, self._began, self._first, self._line = unit, time.perf_counter(), 0.0, 0
        self._references = False

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def _current(self) -> Progress:
        return self._bar

    def begin(self, unit: str, done: float, total: int) -> None:
        """Begin a count of ``total`` units. The first ``done`` units do not affect the estimate of the time left."""
        self._unit, self._began, self._first = unit, time.perf_counter(), done
        self._line = int(self._lines * done / total) if total else 0
        self._bar.reset(self._task, total=total, completed=int(done), description=unit, remark="")

    def show(self, done: float, total: int, remark: str = "", completed: int | None = None) -> None:
        """Show a count.

        Args:
            done: the number of finished units, which may include a fraction of the present unit.
            remark: further text at the end of the line.
            completed: the number of finished whole units. ``None`` means ``done``, rounded down.
        """
        completed = int(done) if completed is None else completed
        texts = [*filter(None, [remark, self._left(done, total)])]
        self._bar.update(self._task, total=total, completed=completed, remark="; ".join(texts))
        line = self._lines * completed // total if total else 0
        if not self._console.is_terminal and line > self._line:
            self._line = line
            self.say("; ".join([f"{self._unit} {completed} of {total}", *texts]))

    def _left(self, done: float, total: int) -> str:
        if not self._first < done < total:
            return ""
        pace = (time.perf_counter() - self._began) / (done - self._first)
        return f"about {format_duration(pace * (total - done))} left"

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def reference_federations(self, done: int, count: int) -> None:
        """Show the number of trained reference federations."""
        if not self._references:
            self._references = True
            self.begin("reference federation", done, count)
            if done and not self._console.is_terminal:
                self.say(f"{done} of {count} reference federations are already trained")
        self.show(done, count)


class Display(LiveBar):
    """A display of a run's rounds."""

    def __init__(self, console: Console) -> None:
        super().__init__(console, "round")

    def trial(self, clusters: int, most: int) -> None:
        """Show which trial of ``clusters = "auto"`` begins."""
        text = f"trial with {clusters} of up to {most} clusters"
        self._bar.update(self._task, description=text)
        if not self._console.is_terminal:
            self.say(text)

    def __call__(self, simulation: Simulation, progress: SimulationState, report: RoundReport | None) -> None:
        """Show the run's progress."""
        done = progress.state.round
        if report is None:
            self.begin("round", done, simulation.last_round)
            return
        rows = progress.rows[-len(progress.state.models) :]
        texts = [f"{metric_name(simulation.model.metric_for(simulation.federation.classes))} {_mean_accuracy(rows)}"]
        if simulation.reference_federations:
            texts.append(f"then {simulation.reference_federations} reference federations")
        self.show(done, simulation.last_round, ", ".join(texts))
        for k in became_unmet(progress.rows):
            self.say(f"round {done}: cluster {k} stays above its members' limits")


def _mean_accuracy(rows: tuple[RoundRow, ...]) -> str:
    """Return the mean accuracy over clients after the last round, or a dash if the accuracy was not measured."""
    measured = [row for row in rows if row["accuracy"] == row["accuracy"] and row["clients"]]
    clients = sum(row["clients"] for row in measured)
    return decimal(sum(row["accuracy"] * row["clients"] for row in measured) / clients) if clients else "-"


def default_display() -> Display | None:
    """Return a display in a terminal or a notebook, and None elsewhere."""
    console = Console(stderr=True)
    return Display(console) if console.is_terminal or console.is_jupyter else None
