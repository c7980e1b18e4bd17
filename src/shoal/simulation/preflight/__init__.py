"""What a simulation will show of its records, by the rule of exposure, before its first round."""

from shoal.simulation.preflight.preflight_report import COLUMNS, Preflight, preflight
from shoal.simulation.preflight.recognised_risks import RecognisedRisks

__all__ = ["COLUMNS", "Preflight", "RecognisedRisks", "preflight"]
