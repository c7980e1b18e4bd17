"""The report of a run, made from its files."""

from pathlib import Path

from shoal.config.schema import read_config
from shoal.core.atomic_files import write_text
from shoal.runs.files import read_samples, read_summary, read_table
from shoal.simulation.property_metrics import PROPERTY_COLUMNS
from shoal.simulation.result import CLIENT_COLUMNS


def report_of(out: Path) -> Path:
    """Write report.html of the finished run in ``out``, whole or not at all; returns the path of the page.

    Raises:
        InputError: ``out`` is not the directory of a finished run, or one of its files is missing or damaged.
    """
    # Here, so that a run without a report does not load matplotlib and jinja2.
    from shoal.reports.run.page import ROC_COLUMNS, ROUND_COLUMNS, run_page  # noqa: PLC0415

    summary = read_summary(out)
    config = read_config(out / "config.toml")
    clients_by_group = [f"clients.{name}" for name in config.data.groups_with_clients]
    updates = None
    if config.property_attack is not None:
        updates = read_table(out / "property.csv", PROPERTY_COLUMNS, empty=True)
    page = run_page(
        config,
        summary,
        rounds=read_table(out / "rounds.csv", (*ROUND_COLUMNS, *clients_by_group)),
        clients=read_table(out / "clients.csv", CLIENT_COLUMNS),
        roc=read_table(out / "roc.csv", ROC_COLUMNS, empty=True),
        updates=updates,
        samples=read_samples(out / "samples.safetensors"),
    )
    path = out / "report.html"
    write_text(path, page)
    return path
