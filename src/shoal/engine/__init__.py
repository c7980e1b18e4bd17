"""Trains many clients fast, plays the rounds, and declares the sockets that the rooms above fill.

May import `core`, `data` and `models`. `loop.py` and `vmapped.py` compute the same thing in two ways; the rest
does not know which. `sockets.py` has what the rooms above fill: `Algorithm`, `RiskSensor`, `Screen`, `Insider`.
"""

from shoal.engine.backend import Backend, check_backend, resolve_backend
from shoal.engine.clipped import keeps_examples_apart
from shoal.engine.engine import DivergenceError, Engine, Precision
from shoal.engine.local import Draws, LocalSGD, Privatizer
from shoal.engine.merge import Merge, shares_of
from shoal.engine.rounds import Training
from shoal.engine.sockets import Algorithm, Insider, Report, RiskSensor, Screen, State

__all__ = [
    "Algorithm",
    "Backend",
    "DivergenceError",
    "Draws",
    "Engine",
    "Insider",
    "LocalSGD",
    "Merge",
    "Precision",
    "Privatizer",
    "Report",
    "RiskSensor",
    "Screen",
    "State",
    "Training",
    "check_backend",
    "keeps_examples_apart",
    "resolve_backend",
    "shares_of",
]
