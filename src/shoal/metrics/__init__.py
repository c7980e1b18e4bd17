"""Metrics as pure functions of arrays.

May import `core`. Metrics do not depend on models, clients or attacks.
"""

from shoal.metrics.attack_bounds import canary_rate, empirical_epsilon, epsilon_lower_bound, exposure_of_canaries
from shoal.metrics.group_metrics import Fairness, adjusted_rand_index, exceeds_threshold, fairness, is_migrated
from shoal.metrics.intervals import (
    auc_interval,
    balanced_accuracy_interval,
    clopper_pearson,
    effective_size,
    mean_interval,
    mean_rate_interval,
)
from shoal.metrics.membership import (
    MembershipMetrics,
    balanced_accuracy,
    gap_accuracy,
    least_non_members,
    membership_metrics,
    roc,
    roc_auc,
    tpr_at_fpr,
)
from shoal.metrics.metric_table import METRICS, Metric, metric_of
from shoal.metrics.run_auc import auc_over_runs

__all__ = [
    "METRICS", "Fairness", "MembershipMetrics", "Metric", "adjusted_rand_index", "auc_interval", "auc_over_runs",
    "balanced_accuracy", "balanced_accuracy_interval", "canary_rate", "clopper_pearson", "effective_size",
    "empirical_epsilon", "epsilon_lower_bound", "exceeds_threshold", "exposure_of_canaries", "fairness",
    "gap_accuracy", "is_migrated", "least_non_members", "mean_interval", "mean_rate_interval",
    "membership_metrics", "metric_of", "roc", "roc_auc", "tpr_at_fpr",
]  # fmt: skip
