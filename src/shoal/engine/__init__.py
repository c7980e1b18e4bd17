"""Trains many clients fast, plays the rounds, and declares the sockets that the rooms above fill.

May import `core`, `data` and `models`. `loop_backend.py` and `vmap_backend.py` compute the same thing in two ways;
the rest does not know which. `protocols.py` has what the rooms above implement.
"""

from shoal.engine.aggregation import Aggregator, averaging_weights
from shoal.engine.backend import Backend, check_backend, resolve_backend
from shoal.engine.engine import DivergenceError, Engine, Precision
from shoal.engine.gradient_clipping import require_per_example_gradients
from shoal.engine.local_sgd import GradientPrivacy, LocalRandomness, LocalSGD
from shoal.engine.protocols import Algorithm, MaliciousClient, RiskEstimator, RoundReport, State, UpdateFilter
from shoal.engine.rounds import Training

__all__ = [
    "Aggregator",
    "Algorithm",
    "Backend",
    "DivergenceError",
    "Engine",
    "GradientPrivacy",
    "LocalRandomness",
    "LocalSGD",
    "MaliciousClient",
    "Precision",
    "RiskEstimator",
    "RoundReport",
    "State",
    "Training",
    "UpdateFilter",
    "averaging_weights",
    "check_backend",
    "require_per_example_gradients",
    "resolve_backend",
]
