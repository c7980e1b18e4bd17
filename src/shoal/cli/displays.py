"""The progress display of ``shoal sweep``, and the tables and sentences that commands print."""

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pandas as pd
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from shoal.audit.audit import Audit, wrong_sign
from shoal.audit.finding import exposure_summary, findings, findings_table
from shoal.core.formats import decimal
from shoal.data.preferences import VIEWS
from shoal.data.sources.catalog import Availability
from shoal.metrics.intervals import Estimate
from shoal.reports.exposure import limit_sentence
from shoal.runs.comparison import Comparison
from shoal.runs.progress import LiveBar
from shoal.sweeps import SweepProgress

_VERDICTS = {
    "bold red": ("recognises every record", "of the records", "is recognised"),
    "yellow": ("may recognise records", "may be recognised"),
    "green": ("recognises no record", "is hidden"),
}
"""The highlighted phrases of verdicts, by colour."""


def format_audit(audit: Audit, stated: Mapping[str, Any] = {}) -> str:
    """Format an audit as text: a table of findings, a summary, and the bounds on any attack.

    ``stated`` has the entries "bound.*" of the run's guarantee.
    """
    found = findings(audit.attacks)
    lines = [f"Check the scores: {wrong}." for wrong in [*wrong_sign(audit.figures()).values()][:1]]
    lines += [*findings_table(found), exposure_summary(found)]
    lines += [f"Attacked: {audit.members:,} members and {audit.non_members:,} non-members."]
    if "site-inference.gain" in stated:
        site = {name.removeprefix("site-inference."): value for name, value in stated.items()}
        gain = Estimate.of(site, "gain")
        lines += [
            f"Site inference among {site['clients']} clients: a held-out record's outputs reveal its client "
            f"with accuracy {decimal(site['accuracy'])}, its class with {decimal(site['chance'])}; gain: {gain.figure}."
        ]
    for view in VIEWS:
        limit = limit_sentence(view, stated, [one.accuracy.value for one in found if one.view == view])
        lines += [f"{limit}."] * bool(limit)
    return "\n".join(lines)


class SweepDisplay(LiveBar):
    """A progress display for a sweep, or for the steps of `shoal protect`; a `SweepWatch`.

    Args:
        steps: whether several sweeps follow each other. Their lines are numbered, and a log has one line per sweep.
    """

    def __init__(self, console: Console, *, steps: bool = False) -> None:
        self._progress: Callable[[], SweepProgress] | None = None
        self._step = 0 if steps else None
        super().__init__(console, "run", lines=1 if steps else 10, refresh_per_second=1)

    def started(self, progress: Callable[[], SweepProgress]) -> None:
        """Show the sweep before its first run, and store the function ``progress`` for later updates."""
        now, self._progress = progress(), progress
        unit = "run"
        if self._step is not None:
            self._step += 1
            unit = f"step {self._step}: run"
        self.begin(unit, now.done * now.runs, now.runs)
        if now.finished and not self._console.is_terminal and self._step is None:
            self.say(f"{now.finished} of {now.runs} runs are already done")

    def run_ended(self, now: SweepProgress) -> None:
        """Show that a run ended."""
        broken = f"{now.failed} failed" if now.failed else ""
        self.show(now.done * now.runs, now.runs, broken, completed=now.finished)

    def _current(self) -> Progress:
        if self._progress is not None:
            self.run_ended(self._progress())
        return super()._current()


def print_comparison(comparison: Comparison) -> None:
    """Print the settings, the metrics and the sentences of a comparison."""
    for title, frame in (("what differs", comparison.settings), ("", comparison.metrics)):
        if len(frame) > 0:
            _print_frame(title, frame)
        else:
            typer.echo("The configurations are the same.")
        typer.echo()
    typer.echo("\n\n".join(comparison.sentences))


def _print_frame(title: str, frame: pd.DataFrame) -> None:
    """Print a table, with unlimited width outside a terminal."""
    table = Table(box=None, pad_edge=False)
    table.add_column(escape(title))
    for name in frame.columns:
        table.add_column(escape(str(name)), justify="right", overflow="fold")
    for label, cells in zip(frame.index, frame.to_numpy().tolist(), strict=True):
        table.add_row(escape(str(label)), *map(escape, cells))
    needed = Console(width=10_000).measure(table).maximum
    Console(width=None if sys.stdout.isatty() else needed).print(table)


def print_sections(sections: Iterable[tuple[str, Iterable[str]]]) -> None:
    """Print titles and sentences on a terminal, with the verdicts of a preflight in colour."""
    console = Console()
    for title, sentences in sections:
        lines = Table.grid(padding=(0, 1))
        for sentence in sentences:
            line = Text(sentence)
            for style, words in _VERDICTS.items():
                line.highlight_words(words, style)
            lines.add_row("-", line)
        console.print(Text(title, style="bold"), lines, "", sep="\n")


def print_sources(sources: Iterable[Availability]) -> None:
    """Print the shipped data sets, and instructions to get missing data sets."""
    table = Table(box=None, pad_edge=False)
    for title in ("data set", "examples", "here", "how to get it"):
        table.add_column(title, overflow="fold")
    for source in sources:
        here, instructions = ("missing", source.instructions) if source.path is None else (str(source.path), "")
        table.add_row(source.name, source.size, escape(here), escape(instructions))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
