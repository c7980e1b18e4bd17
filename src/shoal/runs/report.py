"""The report of a finished run, made again from its files."""

from pathlib import Path

from shoal.config.schema import read_config
from shoal.core.errors import require
from shoal.runs.files import read_run, read_table
from shoal.simulation.property_metrics import PROPERTY_COLUMNS
from shoal.simulation.result import CLIENT_COLUMNS


def report_of(out: Path) -> Path:
    """Write the report of the finished run in ``out`` again, from its files; returns the path of the page.

    Raises:
        InputError: ``out`` is not the directory of a finished run, or one of its files is missing or damaged.
    """
    # Here, so that a run that nobody wants a page of does not load matplotlib and jinja2.
    from shoal.reports.run.page import ROC_COLUMNS, ROUND_COLUMNS, write_report  # noqa: PLC0415

    summary = read_run(out)
    config = read_config(out / "config.toml")
    rounds = read_table(out / "rounds.csv", ROUND_COLUMNS)
    clients = read_table(out / "clients.csv", CLIENT_COLUMNS)
    roc = read_table(out / "roc.csv", ROC_COLUMNS)
    require((out / "samples.safetensors").exists(), f"{out / 'samples.safetensors'}: is missing")
    updates = None
    if config.property_attack is not None:
        updates = read_table(out / "property.csv", PROPERTY_COLUMNS, empty=True)
    return write_report(out, config, summary, rounds, clients, roc, updates=updates)
