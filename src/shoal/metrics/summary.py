"""A run's metrics, with the flat keys of `summary.json`."""

import re
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, field
from math import isnan
from typing import Any, Literal, NamedTuple, TypeVar

from shoal.core.formats import shorten

Metrics = Mapping[str, float]
"""Numbers by name; counts are ints."""

FlatSummary = Mapping[str, float | int | str]
"""Content of `summary.json`."""

TEXT_KEYS = ("algorithm", "dataset", "view")
"""Keys of `summary.json` whose values are not numbers."""

RUN_KEYS = (*TEXT_KEYS, "seed", "rounds")
"""Keys that identify the run, and the view of the run's exposure."""

_Owner = TypeVar("_Owner", bound=Hashable)


@dataclass(frozen=True)
class Summary(dict[str, float | int | str]):
    """The metrics of a run, as a dict with the keys of `summary.json`.

    The operator ``|`` merges two summaries. NaN metrics are omitted.

    Args:
        run: the run's identity, with the keys `RUN_KEYS`; a simulation in memory has no "algorithm" and no "dataset".
        overall: the metrics of the whole run by key in `summary.json`, such as "accuracy.overall" or "migrated".
        by_group: the metrics of each group that has clients, such as ``by_group["minority"]["mia"]``.
        by_cluster: the metrics of each cluster's model and clients, such as ``by_cluster[0]["mia"]``.

    Example:
        >>> import json
        >>> from math import nan
        >>> from shoal.metrics.summary import Summary
        >>> summary = Summary(overall={"migrated": 2}, by_cluster={0: {"clients": 5, "mia": nan}})
        >>> both = summary | Summary(by_cluster={0: {"risk": 0.6}, 1: {"clients": 3}})
        >>> both.clients, both.by_cluster[0]
        (8, {'clients': 5, 'risk': 0.6})
        >>> json.dumps(both)
        '{"clusters.0.risk": 0.6, "migrated": 2, "clusters.0.clients": 5, "clusters.1.clients": 3}'
    """

    run: Mapping[str, str | int] = field(default_factory=dict)
    overall: Metrics = field(default_factory=dict)
    by_group: Mapping[str, Metrics] = field(default_factory=dict)
    by_cluster: Mapping[int, Metrics] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "overall", _drop_undefined(self.overall))
        object.__setattr__(
            self, "by_group", {name: _drop_undefined(metrics) for name, metrics in self.by_group.items()}
        )
        object.__setattr__(self, "by_cluster", {k: _drop_undefined(metrics) for k, metrics in self.by_cluster.items()})
        self.update(flatten(self))

    def __or__(self, other: "Summary") -> "Summary":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Summary(
            run={**self.run, **other.run},
            overall={**self.overall, **other.overall},
            by_group=_merged(self.by_group, other.by_group),
            by_cluster=_merged(self.by_cluster, other.by_cluster),
        )

    # Another summary, where a dict would change.
    __ior__ = __or__  # pyright: ignore[reportAssignmentType]

    def __repr__(self) -> str:
        run = [f"{name}={value}" for name, value in self.run.items()]
        if "accuracy.overall" in self.overall:
            run.append(f"accuracy={self.overall['accuracy.overall']:.3f}")
        mia = [f"{name} {metrics['mia']:.3f}" for name, metrics in self.by_group.items() if "mia" in metrics]
        return shorten(f"Summary({', '.join(run)}; mia: {', '.join(mia) or 'none'}; {len(self.by_cluster)} models)")

    @property
    def view(self) -> str:
        """The view for which the run's exposure is reported; "outsider" by default."""
        return str(self.run.get("view", "outsider"))

    @property
    def clients(self) -> int:
        """The number of clients."""
        return sum(int(metrics.get("clients", 0)) for metrics in self.by_cluster.values())


def _drop_undefined(metrics: Metrics) -> Metrics:
    return {name: value for name, value in metrics.items() if not isnan(value)}


def _merged(first: Mapping[_Owner, Metrics], second: Mapping[_Owner, Metrics]) -> Mapping[_Owner, Metrics]:
    return {owner: {**first.get(owner, {}), **second.get(owner, {})} for owner in {**first, **second}}


_ORDER: tuple[tuple[Literal["overall", "group", "cluster"], str], ...] = (
    ("overall", r"(train_)?accuracy\.overall"),
    ("group", r"(train_)?accuracy|gap"),
    ("overall", r"fairness\..*"),
    ("overall", r"references"),
    ("group", r"(mia|tpr|loss_threshold).*"),
    ("cluster", r"(mia|tpr).*|risk"),
    ("overall", r"(violations|exceeded)\.total|limits_of_other_views|migrated|adjusted_rand_index"),
    ("group", r"violations|exceeded|exposure"),
    ("cluster", r"clients|examples|(train_)?accuracy|gap"),
    ("cluster", r"over_limit|limit_unmet|directive\..*"),
    ("overall", r"main\..*|epsilon|delta|property\.(updates|positives)|cosine\..*"),
    ("cluster", r"cosine.*"),
    ("overall", r"property\.auc(_control|_rounds)?"),
    ("cluster", r".*"),
    ("group", r".*"),
    ("overall", r".*"),
)
"""The blocks of `summary.json`: owner and pattern of names. A metric is in the first block that matches."""


def flatten(summary: Summary) -> dict[str, float | int | str]:
    """Return the keys and values of `summary.json` in their order.

    >>> flatten(Summary(overall={"migrated": 2}, by_group={"few": {"mia": 0.5}}, by_cluster={0: {"mia": 0.6}}))
    {'mia.few': 0.5, 'clusters.0.mia': 0.6, 'migrated': 2}
    """
    owners = {
        "overall": [("", "", summary.overall)],
        "group": [("", f".{name}", metrics) for name, metrics in summary.by_group.items()],
        "cluster": [(f"clusters.{k}.", "", metrics) for k, metrics in summary.by_cluster.items()],
    }
    flat: dict[str, float | int | str] = dict(summary.run)
    for owner, names in _ORDER:
        fits = re.compile(names, re.DOTALL).fullmatch
        for before, after, metrics in owners[owner]:
            # A key that stands in an earlier block keeps its place.
            flat |= {f"{before}{name}{after}": value for name, value in metrics.items() if fits(name)}
    return flat


class MetricKey(NamedTuple):
    """The parts of a key of `summary.json`: the metric, and the group or the cluster."""

    metric: str
    group: str | None = None
    cluster: int | None = None


def accuracy_key(attack: str) -> str:
    """Return the key of `summary.json` for an attack's balanced accuracy.

    >>> accuracy_key("other-clusters")
    'mia_by_other_clusters'
    """
    return "mia_by_" + re.sub(r"\W", "_", attack)


_CLUSTER = re.compile(r"clusters\.(\d+)\.(.+)")
_OVERALL = re.compile(
    r"[^.]*|(baseline\.[a-z-]+\.\w+|auto\..*|clusters\.small)|(train_)?accuracy\.overall|(violations|exceeded)\.total|"
    r"(fairness|main|property|cosine|epsilon|bound|seconds|canaries|forgetting)\..*"
)
_AGAINST = re.compile(r"\w+_against_.*", re.DOTALL)
_GROUP = re.compile(r"(baseline\.[a-z-]+\.\w+|tpr_at_fpr_0\.\d+(?:_population)?|\w+)\.(.*)", re.DOTALL)


def split_key(key: str, groups: Collection[str] = ()) -> MetricKey:
    """Split a key of `summary.json` into its parts.

    Args:
        groups: the names of groups with clients, needed only for keys that name two groups, such as
            ``mia_against_few.many``.

    >>> split_key("tpr_at_fpr_0.01.far.north")
    MetricKey(metric='tpr_at_fpr_0.01', group='far.north', cluster=None)
    >>> split_key("clusters.0.mia")
    MetricKey(metric='mia', group=None, cluster=0)
    >>> split_key("baseline.by-group.low"), split_key("baseline.by-group.low.far.north").group
    (MetricKey(metric='baseline.by-group.low', group=None, cluster=None), 'far.north')
    >>> split_key("violations.total")
    MetricKey(metric='violations.total', group=None, cluster=None)
    """
    of_cluster = _CLUSTER.fullmatch(key)
    if of_cluster:
        return MetricKey(of_cluster[2], cluster=int(of_cluster[1]))
    if _OVERALL.fullmatch(key):
        return MetricKey(key)
    if _AGAINST.fullmatch(key):
        group = max((name for name in groups if key.endswith(f".{name}")), key=len, default=key.rpartition(".")[2])
        return MetricKey(key.removesuffix(f".{group}"), group)
    of_group = _GROUP.fullmatch(key)
    return MetricKey(of_group[1], of_group[2]) if of_group else MetricKey(key)


def parse_summary(flat: FlatSummary) -> Summary:
    """Create a summary from the keys and values of `summary.json`; the inverse of `flatten`.

    >>> summary = Summary({"seed": 1}, {"migrated": 2}, {"few": {"mia": 0.5, "violations": 0}}, {0: {"mia": 0.6}})
    >>> parsed = parse_summary(flatten(summary))
    >>> parsed == summary, parsed.run, parsed.by_group
    (True, {'seed': 1}, {'few': {'mia': 0.5, 'violations': 0}})
    """
    # Every group with clients has "violations", and where there are test examples of it "accuracy".
    parts = map(split_key, flat)
    groups = {part.group for part in parts if part.group is not None and part.metric in {"accuracy", "violations"}}
    run: dict[str, Any] = {}
    overall: dict[str, Any] = {}
    by_group: dict[str, dict[str, Any]] = {}
    by_cluster: dict[int, dict[str, Any]] = {}
    for key, value in flat.items():
        if key in RUN_KEYS:
            run[key] = value
            continue
        metric, group, cluster = split_key(key, groups)
        if cluster is not None:
            by_cluster.setdefault(cluster, {})[metric] = value
        elif group is not None:
            by_group.setdefault(group, {})[metric] = value
        else:
            overall[metric] = value
    return Summary(run, overall, by_group, by_cluster)
