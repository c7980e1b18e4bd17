"""Trains many clients fast, plays the rounds, and declares the sockets that the rooms above fill.

May import `core`, `data` and `models`. `loop.py` and `vmapped.py` compute the same thing in two ways; the rest
does not know which. `sockets.py` has what the rooms above fill: `Algorithm`, `RiskSensor`, `Screen`, `Insider`.
"""

from shoal.engine.aggregation import Merge, shares_of
from shoal.engine.backend import Backend, check_backend, resolve_backend
from shoal.engine.engine import DivergenceError, Engine, Precision
from shoal.engine.gradient_clipping import keeps_examples_apart
from shoal.engine.local_sgd import Draws, LocalSGD, Privatizer
from shoal.engine.protocols import Algorithm, Insider, Report, RiskSensor, Screen, State
from shoal.engine.rounds import Training

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
