"""Tables, figures and the page of a sweep: `write_sweep_report` writes them all."""

from shoal.reports.sweep.write import write_sweep_report

__all__ = ["write_sweep_report"]
