"""Sweeps: many runs from one file, on many processors, with tables and figures of their results."""

from shoal.core.processes import Workers
from shoal.sweeps.plan import SweepProgress
from shoal.sweeps.runner import SweepResult, is_sweep, report_of_sweep, run_sweep
from shoal.sweeps.sweep_file import Sweep, read_sweep

__all__ = ["Sweep", "SweepProgress", "SweepResult", "Workers", "is_sweep", "read_sweep", "report_of_sweep", "run_sweep"]
