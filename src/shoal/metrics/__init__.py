"""Metrics as pure functions of arrays: what was predicted, then what is true, then weights.

May import `core`; knows nothing of models, clients or attacks.
"""

from shoal.metrics.canary_exposure import CanaryRate, canary_rate, exposure_of_canaries
from shoal.metrics.clustering import adjusted_rand_index, exceeds_threshold, is_migrated
from shoal.metrics.fairness import Fairness, fairness
from shoal.metrics.membership import (
    MembershipMetrics,
    balanced_accuracy,
    gap_accuracy,
    membership_metrics,
    roc,
    tpr_at_fpr,
)

__all__ = [
    "CanaryRate",
    "Fairness",
    "MembershipMetrics",
    "adjusted_rand_index",
    "balanced_accuracy",
    "canary_rate",
    "exceeds_threshold",
    "exposure_of_canaries",
    "fairness",
    "gap_accuracy",
    "is_migrated",
    "membership_metrics",
    "roc",
    "tpr_at_fpr",
]
