"""Metrics that no run of a sweep may have although nobody mistyped them: a summary leaves out what is undefined."""

from collections.abc import Iterable
from itertools import permutations

from shoal.reports.sweep.labels import FAMILIES, split_key

_TPR = tuple(name for name in FAMILIES if name.startswith("tpr_at_fpr_"))
_OF_BOTH = ("accuracy", "train_accuracy", "gap", "mia", "mia_auc", "mia_population", "mia_population_auc", *_TPR)
_ENDS = ("mia_low", "mia_high", "loss_threshold_low", "loss_threshold_high")
_OF_GROUPS = (*_OF_BOTH, "exposure", "loss_threshold", "loss_threshold_auc", *_ENDS)
_OF_MODELS = (*_OF_BOTH, "risk", "cosine", "cosine_sd", "property_auc")
_AGAINST = ("mia", "mia_auc", "loss_threshold")
_OF_RUNS = (
    "cosine.mean", "cosine.sd", "epsilon", "fairness.demographic_parity", "fairness.equal_opportunity",
    "fairness.equalized_odds", "main.auc", "main.auc_even", "property.auc", "property.auc_control",
    "property.auc_counterfactual", "property.auc_rounds", "property.auc_swapped", "property.auc_within",
)  # fmt: skip


def possible_metrics(columns: Iterable[str]) -> frozenset[str]:
    """The metrics that may be undefined in every run of a sweep whose results have these ``columns``.

    They are of the groups and models that the columns are of: another name is mistyped.

    >>> known = possible_metrics(["violations.few", "larger.clients"])
    >>> [key in known for key in ("tpr_at_fpr_0.01.few", "larger.tpr_at_fpr_0.01", "tpr_at_fpr_0.01.fw", "tpr.few")]
    [True, True, False, False]
    """
    groups, models = dict[str, None](), dict[str, None]()
    for name in columns:
        family, whose = split_key(name)
        if family == "clients" and name.endswith(".clients"):
            models[name.removesuffix(".clients")] = None
        elif name == f"{family}.{whose}" and whose not in ("overall", "total"):
            groups[whose] = None
    of_groups = [f"{metric}.{group}" for metric in _OF_GROUPS for group in groups]
    of_models = [f"{model}.{metric}" for metric in _OF_MODELS for model in models]
    against = [f"{metric}_against_{other}.{one}" for metric in _AGAINST for one, other in permutations(groups, 2)]
    return frozenset([*of_groups, *of_models, *against, *_OF_RUNS])


def reason(key: str) -> str:
    """Why a finished run does not have the metric ``key``.

    >>> reason("larger.tpr_at_fpr_0.01"), reason("mia.few")
    ('too few non-members', 'no value')
    """
    return "too few non-members" if split_key(key)[0] in _TPR else "no value"
