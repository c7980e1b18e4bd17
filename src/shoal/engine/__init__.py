"""Trains many clients fast, plays the rounds, and declares the sockets that the rooms above fill.

May import `core`, `data` and `models`. `loop.py` and `vmapped.py` compute the same thing in two ways; the rest
does not know which. An algorithm fills the socket `Algorithm`, a red team the socket `RiskSensor`.
"""

from shoal.engine.engine import Backend, Engine, Precision, resolve_backend
from shoal.engine.local import LocalSGD
from shoal.engine.merge import Merge, shares_of
from shoal.engine.rounds import Algorithm, Report, RiskSensor, State, Training

__all__ = [
    "Algorithm",
    "Backend",
    "Engine",
    "LocalSGD",
    "Merge",
    "Precision",
    "Report",
    "RiskSensor",
    "State",
    "Training",
    "resolve_backend",
    "shares_of",
]
