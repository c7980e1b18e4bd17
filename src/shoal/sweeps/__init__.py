"""Many runs from one file: what varies, running it on many processors, and tables and figures of the outcome."""

from shoal.core.processes import Workers
from shoal.sweeps.plan import SweepProgress
from shoal.sweeps.runner import SweepResult, is_sweep, report_of_sweep, run_sweep
from shoal.sweeps.sweep_file import Sweep, read_sweep

__all__ = ["Sweep", "SweepProgress", "SweepResult", "Workers", "is_sweep", "read_sweep", "report_of_sweep", "run_sweep"]
