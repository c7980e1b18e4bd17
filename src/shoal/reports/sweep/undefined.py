"""Metrics that no run of a sweep may have although nobody mistyped them: a summary leaves out what is undefined."""

import re
from collections.abc import Collection, Iterable
from itertools import permutations

from shoal.core.errors import InputError, nearest, require
from shoal.metrics import summary
from shoal.reports.sweep.labels import FAMILIES, KEYS, split_key
from shoal.reports.sweep.report_spec import FigureSpec, ReportSpec, said_of

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


_OF_ALL = ("overall", "total")
_MORE = ("cosine", "cosine_sd", "delta", "exposure", "members", "non_members", "property_auc", "property_updates")
_METRICS = {*FAMILIES, *KEYS, *_OF_RUNS, *_MORE, "shadow_examples"}
_METRICS |= {f"{metric}.{each}" for metric in ("accuracy", "train_accuracy") for each in _OF_ALL[:1]}
_METRICS |= {f"{metric}.{each}" for metric in ("exceeded", "violations") for each in _OF_ALL[1:]}
_OPEN = re.compile(r"(mia|loss_threshold)_\w+|(canaries|cosine|directive|main|property)\..+", re.DOTALL)
"""Metrics of which each attack, property or coordinator makes its own."""

_COURSES = ("clients", "examples", "risk", "risk_low", "risk_high", "train_loss", "accuracy")


def require_shown(shown: ReportSpec, groups: Collection[str]) -> None:
    """Raise `InputError` where a table or figure asks for a metric that no run with these ``groups`` can have."""
    for kind, specs in (("tables", shown.tables), ("figures", shown.figures)):
        for name, spec in specs.items():
            with said_of(f"'{kind}.{name}'"):
                for key in spec.y:
                    courses = isinstance(spec, FigureSpec) and spec.kind == "courses"
                    _require_metric(key, groups, _COURSES if courses else _METRICS)


def _require_metric(key: str, groups: Collection[str], metrics: Collection[str]) -> None:
    names = "|".join(map(re.escape, groups))
    of_model = re.fullmatch(rf"(?:larger|smaller|clusters\.\d+|model\.(?:{names}))\.(.+)", key, re.DOTALL)
    metric, group = (of_model[1], None) if of_model else summary.split_key(key, groups)[:2]
    if f"{metric}.{group}" in metrics:
        metric, group = f"{metric}.{group}", None
    known = metric in metrics or _OPEN.fullmatch(metric) is not None
    if not known:
        hints = [hint for hint in (nearest(key, metrics), nearest(metric, metrics)) if hint.startswith("did")]
        raise InputError(f"no run has the metric '{key}'; {(*hints, 'docs/configuration.md has them')[0]}")
    require(
        group is None or group in groups,
        f"no run has the metric '{key}', since none has the group '{group}'; {nearest(str(group), groups)}",
    )


def reason(key: str) -> str:
    """Why a finished run does not have the metric ``key``.

    >>> reason("larger.tpr_at_fpr_0.01"), reason("mia.few")
    ('too few non-members', 'no value')
    """
    return "too few non-members" if split_key(key)[0] in _TPR else "no value"
