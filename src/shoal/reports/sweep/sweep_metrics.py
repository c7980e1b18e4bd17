"""The metrics of a sweep by their keys in results.csv and rounds.csv: whose each is, and which a run may lack."""

import re
from collections.abc import Collection, Iterable
from itertools import permutations

from shoal.core.errors import InputError, nearest, require
from shoal.metrics import summary
from shoal.metrics.metric_table import METRICS, Metric, Scope, is_declared, metric_of
from shoal.reports.attack_titles import attack_title
from shoal.reports.sweep.report_spec import FigureSpec, ReportSpec, said_of

_FAMILIES = "|".join([*(re.escape(key) for key, each in METRICS.items() if each.scopes != "run"),
                      r"mia_by_\w+", r"directive\.\w+"])  # fmt: skip
_KEY = re.compile(
    rf"((?P<model>larger|smaller|clusters\.\d+|model\..+?)\.)?(?P<family>{_FAMILIES})(?(model)|(\.(?P<group>.+))?)"
)
_AGAINST = ("mia", "mia_auc", "loss_threshold")


def split_key(name: str) -> tuple[str, str]:
    """The key of a metric in the table, and whose it is, in words; empty for a metric of no family, or of nobody.

    >>> split_key("mia.far.north"), split_key("clusters.3.mia"), split_key("model.far.north.mia"), split_key("migrated")
    (('mia', 'far.north'), ('mia', 'model 3'), ('mia', 'model of far.north'), ('', ''))
    """
    parts = _KEY.fullmatch(name)
    if parts is None:
        return "", ""
    if parts["model"] is None:
        return parts["family"], parts["group"] or ""
    size, _, which = parts["model"].partition(".")
    whose = {"clusters": f"model {which}", "model": f"model of {which}"}.get(size, f"{size} model")
    return parts["family"], whose


def metric_at(key: str) -> Metric:
    """The metric of a column.

    >>> metric_at("mia_by_rmia_offline.few").name, metric_at("seconds.total").label
    ('MIA accuracy, offline RMIA', 'time (s)')
    """
    return metric_of(split_key(key)[0] or key, attack_title=attack_title)


def format_value(value: float, key: str, decimals: int | None = None) -> str:
    """A value of the metric ``key`` with its decimals and a true minus sign; a dash for NaN."""
    return metric_at(key).plain(value, decimals)


def format_estimate(mean: float, spread: float, n: int, key: str, seeds: int) -> str:
    """A mean over ``n`` seeds with its spread, and with ``n`` where that is not all ``seeds``.

    >>> format_estimate(0.8123, 0.0101, 4, "accuracy.overall", seeds=5)
    '0.812 ± 0.010 (n = 4)'
    """
    text = format_value(mean, key) + (f" ± {format_value(spread, key)}" if n > 1 else "")
    return text if n in (0, seeds) else f"{text} (n = {n})"


def reason(key: str) -> str:
    """Why a finished run does not have the metric ``key``.

    >>> reason("larger.tpr_at_fpr_0.01"), reason("mia.few")
    ('too few non-members', 'no value')
    """
    return "too few non-members" if split_key(key)[0].startswith("tpr_at_fpr_") else "no value"


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
    of_groups = [f"{metric}.{group}" for metric in _of("group") for group in groups]
    of_models = [f"{model}.{metric}" for metric in _of("model") for model in models]
    against = [f"{metric}_against_{other}.{one}" for metric in _AGAINST for one, other in permutations(groups, 2)]
    return frozenset([*of_groups, *of_models, *against, *_of("run")])


def require_shown(shown: ReportSpec, groups: Collection[str]) -> None:
    """Raise `InputError` where a table or figure asks for a metric that no run with these ``groups`` can have."""
    for kind, specs in (("tables", shown.tables), ("figures", shown.figures)):
        for name, spec in specs.items():
            with said_of(f"'{kind}.{name}'"):
                for key in spec.y:
                    courses = isinstance(spec, FigureSpec) and spec.kind == "courses"
                    _require_metric(key, groups, courses=courses)


def _require_metric(key: str, groups: Collection[str], *, courses: bool) -> None:
    names = "|".join(map(re.escape, groups))
    of_model = re.fullmatch(rf"(?:larger|smaller|clusters\.\d+|model\.(?:{names}))\.(.+)", key, re.DOTALL)
    metric, group = (of_model[1], None) if of_model else summary.split_key(key, groups)[:2]
    if (metric, group) in _OF_ALL:
        metric, group = f"{metric}.{group}", None
    known = _of("round") if courses else [*METRICS, *(".".join(each) for each in _OF_ALL)]
    if metric not in known and (metric in METRICS or not is_declared(metric)):
        hints = [hint for hint in (nearest(key, known), nearest(metric, known)) if hint.startswith("did")]
        raise InputError(f"no run has the metric '{key}'; {(*hints, 'docs/configuration.md has them')[0]}")
    require(
        group is None or group in groups,
        f"no run has the metric '{key}', since none has the group '{group}'; {nearest(str(group), groups)}",
    )


_OF_ALL = (("accuracy", "overall"), ("train_accuracy", "overall"), ("exceeded", "total"), ("violations", "total"))


def _of(scope: Scope) -> list[str]:
    """The keys of the metrics that such a thing has."""
    return [key for key, each in METRICS.items() if scope in each.scopes.split()]
