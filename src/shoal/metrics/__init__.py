"""Rulers: numbers from arrays. May import `core`; knows nothing of models, clients or attacks."""

from shoal.metrics.clustering import migrated, recovered, violated
from shoal.metrics.fairness import Fairness, fairness
from shoal.metrics.membership import Leakage, balanced_accuracy, gap_accuracy, leakage, roc, tpr_at_fpr

__all__ = [
    "Fairness",
    "Leakage",
    "balanced_accuracy",
    "fairness",
    "gap_accuracy",
    "leakage",
    "migrated",
    "recovered",
    "roc",
    "tpr_at_fpr",
    "violated",
]
