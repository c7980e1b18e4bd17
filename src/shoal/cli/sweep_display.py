"""`shoal sweep` on a terminal: how many runs and rounds are done, and how long the rest will take."""

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import Progress

from shoal.core.formats import format_duration
from shoal.runs.progress import LiveBar
from shoal.sweeps import SweepProgress


class SweepDisplay(LiveBar):
    """Shows a sweep while it is open: live on a terminal, elsewhere a line for each run that ends."""

    def __init__(self, console: Console) -> None:
        self._progress: Callable[[], SweepProgress] | None = None
        super().__init__(console, "run", refresh_per_second=1, current=self._updated_bar)

    def started(self, progress: Callable[[], SweepProgress]) -> None:
        """Keep how far the sweep is before its first run; the signature is `shoal.sweeps.runner.OnStart`."""
        now = progress()
        self._began, self._before = time.perf_counter(), now.done
        self._progress = progress
        if now.finished and not self._console.is_terminal:
            self._console.print(f"{now.finished} of {now.runs} runs are done already")

    def run_ended(self, now: SweepProgress) -> None:
        """Print that a run ended, where no live display shows it."""
        if not self._console.is_terminal:
            broken = f", {now.failed} failed" if now.failed else ""
            self._console.print(f"{now.finished} of {now.runs} runs are done{broken}{self._left(now)}")

    def _updated_bar(self) -> Progress:
        if self._progress is not None:
            now = self._progress()
            broken = f"{now.failed} failed; " if now.failed else ""
            left = f"{broken}{self._left(now).removeprefix('; ')}"
            self._bar.update(self._task, total=now.runs, completed=now.finished, left=left)
        return self._bar

    def _left(self, now: SweepProgress) -> str:
        """Time left, by the work that was done since the sweep was started; nothing before the first run ends."""
        done = now.done - self._before
        if done <= 0 or now.finished + now.failed == now.runs:
            return ""
        return f"; about {format_duration((time.perf_counter() - self._began) / done * (1 - now.done))} left"
