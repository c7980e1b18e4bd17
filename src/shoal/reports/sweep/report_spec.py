"""The tables, figures and labels of a sweep's file.

Each table and figure must display, fix (`where`) or average over (`average`) every axis with more than one setting.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from shoal.audit.finding import attack_title
from shoal.config.kinds import algorithm_title
from shoal.config.toml_files import parse
from shoal.core.errors import InputError, require, suggest
from shoal.core.settings import settings
from shoal.metrics import summary
from shoal.metrics.metric_table import METRICS, Metric, is_declared, metric_of

Value = str | int | float | bool
"""A setting of an axis, as in results.csv."""

Axes = Mapping[str, Sequence[Value]]
"""The settings of each axis, in the order of the sweep's file."""


@settings
class Selection:
    """The common keys of tables and figures. The key `y` names columns of results.csv."""

    y: Annotated[list[str], Field(min_length=1)]
    title: str = ""
    caption: str = ""
    where: dict[str, Value] = field(default_factory=dict)
    average: list[str] = field(default_factory=list)


@settings
class TableSpec(Selection):
    """A table [tables.NAME] with means and standard deviations over seeds."""

    rows: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    y_in: Literal["rows", "columns"] = "rows"

    @property
    def displayed(self) -> tuple[str, ...]:
        """The axes displayed in the table's rows and columns."""
        return (*self.rows, *self.columns)


@settings
class FigureSpec(Selection):
    """A figure [figures.NAME], with one panel per metric over the axis `x` and one series per setting of `by`."""

    kind: Literal["boxes", "bars", "lines"] = field(kw_only=True)
    x: str = field(kw_only=True)
    by: str | None = None
    y_label: str = ""
    """The name of all panels' y axes, which then have one scale."""
    level: Annotated[float, Field(allow_inf_nan=False)] | None = None
    """A dotted line for comparison, such as 0.5 for chance."""

    @property
    def displayed(self) -> tuple[str, ...]:
        """The axes displayed in the figure, `by` before `x`."""
        return (self.x,) if self.by is None else (self.by, self.x)


Displayed = TableSpec | FigureSpec


@settings
class ReportSpec:
    """The sections [tables], [figures] and [labels] of a sweep's file.

    Labels are names for axes, settings, groups and metrics.
    """

    tables: dict[str, TableSpec] = field(default_factory=dict)
    figures: dict[str, FigureSpec] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)


def read_report_spec(document: Mapping[str, Any], axes: Axes, where: str) -> ReportSpec:
    """Read and check the tables, figures and labels of a sweep's file.

    Raises:
        InputError: an axis or a setting is unknown, or an axis is neither displayed, fixed nor averaged over.
    """
    spec = parse(ReportSpec, document, where)
    for kind, specs in (("tables", spec.tables), ("figures", spec.figures)):
        for name, displayed in specs.items():
            require(
                bool(name) and all(letter.isalnum() or letter in "-_." for letter in name) and name[0] != ".",
                f"{where}: '{kind}.{name}' must have a name of letters, digits, '-', '_' and '.'",
            )
            require(len(name.encode()) <= 200, f"{where}: '{kind}.{name}' must have a name of at most 200 bytes")
            with said_of(f"{where}: '{kind}.{name}'"):
                _check_axes(displayed, axes)
    return spec


@contextmanager
def said_of(subject: str) -> Iterator[None]:
    """Begin the message of an `InputError` with ``subject``."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{subject}: {error}") from error


def _check_axes(spec: Displayed, axes: Axes) -> None:
    used = [*spec.displayed, *spec.where, *spec.average]
    for axis in used:
        hint = suggest(axis, axes) if axes else "the sweep has no axes"
        require(axis in axes, f"the sweep does not vary '{axis}'; {hint}")
        require(used.count(axis) == 1, f"'{axis}' is used twice; either display, fix or average over the axis")
    for axis, value in spec.where.items():
        same = any(setting == value and isinstance(setting, bool) == isinstance(value, bool) for setting in axes[axis])
        settings = ", ".join(map(str, axes[axis]))
        require(same, f"'where.{axis}' must be one of {settings} (got {value!r})")
    for key in spec.y:
        require(spec.y.count(key) == 1, f"'y' has '{key}' twice")
    for axis in axes:
        require(
            axis in used or len(axes[axis]) == 1,
            f"'{axis}' also varies in the sweep; display the axis, fix the axis by 'where', or add it to 'average'",
        )


_FAMILIES = "|".join([*(re.escape(key) for key, metric in METRICS.items() if metric.scopes != "run"),
                      r"mia_by_\w+", r"directive\.\w+"])  # fmt: skip
_KEY = re.compile(
    rf"((?P<model>larger|smaller|clusters\.\d+|model\..+?)\.)?(?P<family>{_FAMILIES})(?(model)|(\.(?P<group>.+))?)"
)


def split_column(name: str) -> tuple[str, str]:
    """Return the metric's key and the name of the group or model that a column of results.csv measures.

    >>> split_column("mia.far.north"), split_column("clusters.3.mia")
    (('mia', 'far.north'), ('mia', 'model 3'))
    >>> split_column("model.far.north.mia"), split_column("migrated")
    (('mia', 'model of far.north'), ('', ''))
    """
    parts = _KEY.fullmatch(name)
    if parts is None:
        return "", ""
    if parts["model"] is None:
        return parts["family"], parts["group"] or ""
    size, _, model = parts["model"].partition(".")
    owner = {"clusters": f"model {model}", "model": f"model of {model}"}.get(size, f"{size} model")
    return parts["family"], owner


def metric_at(key: str) -> Metric:
    """Return the metric of a column of results.csv.

    >>> metric_at("mia_by_rmia_offline.few").name, metric_at("seconds.total").label
    ('MIA accuracy, offline RMIA', 'time (s)')
    """
    return metric_of(split_column(key)[0] or key, attack_title=attack_title)


def format_value(value: float, key: str, decimals: int | None = None) -> str:
    """Format a value of the metric ``key``, with a dash for NaN."""
    return metric_at(key).plain(value, decimals)


def format_estimate(mean: float, spread: float, n: int, key: str, seeds: int) -> str:
    """Format a mean over ``n`` seeds with the standard deviation, and ``n`` if some seeds have no value.

    >>> format_estimate(0.8123, 0.0101, 4, "accuracy.overall", seeds=5)
    '0.812 ± 0.010 (n = 4)'
    """
    text = format_value(mean, key) + (f" ± {format_value(spread, key)}" if n > 1 else "")
    return text if n in (0, seeds) else f"{text} (n = {n})"


def reason(key: str) -> str:
    """Return the reason why a finished run has no value of the metric ``key``.

    >>> reason("larger.tpr_at_fpr_0.01"), reason("mia.few")
    ('too few non-members', 'no value')
    """
    return "too few non-members" if split_column(key)[0].startswith("tpr_at_fpr_") else "no value"


def groups_in(columns: Iterable[str]) -> set[str]:
    """Return the groups with clients, from the columns of results.csv.

    >>> groups_in(["violations.far.north", "violations.total", "mia.few"])
    {'far.north'}
    """
    return {split_column(name)[1] for name in columns if name.startswith("violations.")} - {"total"}


def require_shown(shown: ReportSpec, groups: Collection[str], further: Collection[str] = ()) -> None:
    """Check that a run can have every metric of the tables and figures.

    Args:
        further: the keys of user-defined metrics, or further columns of the results.

    Raises:
        InputError: no run can have a requested metric.
    """
    for kind, specs in (("tables", shown.tables), ("figures", shown.figures)):
        for name, spec in specs.items():
            with said_of(f"'{kind}.{name}'"):
                for key in spec.y:
                    _require_metric(key, groups, further)


def _require_metric(key: str, groups: Collection[str], further: Collection[str]) -> None:
    names = "|".join(map(re.escape, groups))
    of_model = re.fullmatch(rf"(?:larger|smaller|clusters\.\d+|model\.(?:{names}))\.(.+)", key, re.DOTALL)
    metric, group = (of_model[1], None) if of_model else summary.split_key(key, groups)[:2]
    if key in further or metric in further:
        return
    metric, group = (f"{metric}.{group}", None) if f"{metric}.{group}" in _OF_ALL else (metric, group)
    if metric not in _OF_ALL and not is_declared(metric):
        nearby = suggest(key, [*METRICS, *_OF_ALL]), suggest(metric, METRICS)
        hints = [hint for hint in nearby if hint.startswith("did")]
        raise InputError(f"no run has the metric '{key}'; {(*hints, 'docs/files.md lists the metrics')[0]}")
    require(
        group is None or group in groups,
        f"no run has the metric '{key}', because no run has the group '{group}'; {suggest(str(group), groups)}",
    )


_OF_ALL = ("accuracy.overall", "train_accuracy.overall", "exceeded.total", "violations.total")


AXES = {
    "algorithm.name": "algorithm",
    "data.groups.minority.share": "minority's share of the clients",
    "data.examples_per_client": "examples per client",
    "data.source": "data",
    "red_team.estimator": "estimator",
}


@dataclass(frozen=True)
class Labels:
    """Names for a sweep's axes, settings and metrics: the user's label, a default name, or the key."""

    labels: Mapping[str, str]

    def axis(self, name: str) -> str:
        """Return the name of an axis."""
        return self.labels.get(name) or AXES.get(name, name)

    def setting(self, value: Value) -> str:
        """Return the name of a setting."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return self.labels.get(text) or algorithm_title(text)

    def key(self, name: str) -> str:
        """Return the name of a metric of results.csv or rounds.csv.

        >>> labels = Labels({"far": "far away"})
        >>> labels.key("accuracy.overall"), labels.key("tpr_at_fpr_0.01.far"), labels.key("smaller.mia")
        ('accuracy, all clients', 'TPR at 1 % FPR, far away', 'MIA accuracy, smaller model')
        """
        if name in self.labels:
            return self.labels[name]
        owner = split_column(name)[1]
        group = owner.removeprefix("model of ")
        owner_name = owner.removesuffix(group) + self.labels.get(group, group)
        owner_name = "all clients" if owner in ("overall", "total") else owner_name
        return ", ".join(filter(None, (metric_at(name).label, owner_name)))

    def selection(self, spec: Selection, axes: Axes) -> list[str]:
        """Describe the fixed axes and the axes averaged over in sentences."""
        sentences = []
        if spec.where:
            held = ", ".join(f"{self.axis(axis)} = {self.setting(value)}" for axis, value in spec.where.items())
            sentences.append(f"Held: {held}.")
        if spec.average:
            over = [f"{self.axis(axis)} ({', '.join(map(self.setting, axes[axis]))})" for axis in spec.average]
            sentences.append(f"Each seed is first averaged over {' and '.join(over)}.")
        return sentences
