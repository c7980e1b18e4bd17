"""Many runs from one file: what varies, running it on many processors, and tables and figures of the outcome."""

from shoal.experiments.sweeps.runner import Outcome, is_sweep, report_of_sweep, run_sweep
from shoal.experiments.sweeps.spec import Sweep, read_sweep
from shoal.experiments.sweeps.standing import Standing
from shoal.experiments.sweeps.workers import Workers

__all__ = ["Outcome", "Standing", "Sweep", "Workers", "is_sweep", "read_sweep", "report_of_sweep", "run_sweep"]
