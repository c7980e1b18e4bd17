"""The report of a run, made from its files."""

from pathlib import Path

from shoal.runs.result import read_tables


def report_of(out: Path) -> Path:
    """Write report.html of the finished run in ``out``, whole or not at all; returns the path of the page.

    Raises:
        InputError: ``out`` is not the directory of a finished run, or one of its files is missing or damaged.
    """
    return read_tables(out).report(out / "report.html")
