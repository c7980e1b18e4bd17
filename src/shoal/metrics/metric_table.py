"""The name, meaning, format and direction of every metric that a run reports.

Shoal's own metrics are listed in `metrics.toml`. User-defined measurements add `Metric` values.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Literal, get_args

from shoal.core.errors import require
from shoal.core.formats import ACCURACY, DASH, count, decimal, format_duration, number, percent
from shoal.core.settings import one_of

Format = Literal["percent", "decimal", "count", "seconds", "number"]
Scope = Literal["run", "group", "model", "round"]
"""Scope of a metric: a run, a group of clients, a model and its clients, or a model in a round."""

_TEXTS: Mapping[Format, Callable[[float], str]] = {
    "percent": percent, "decimal": decimal, "count": count, "seconds": format_duration, "number": number,
}  # fmt: skip
_DECIMALS: Mapping[Format, int] = {"percent": 3, "decimal": 3, "count": 1, "seconds": 1, "number": 3}


@dataclass(frozen=True)
class Metric:
    """A metric that a run reports.

    Args:
        key: the key in `summary.json`, without the group or the model. If Shoal has a metric with this key, this name
            and format replace Shoal's.
        name: the name within a sentence.
        meaning: the meaning, in one or two sentences.
        format: the format of values: 0.25 is "25.0 %" in "percent" and "0.250" in "decimal".
        better: the direction of better values, or ``None`` if neither direction is better.
        scopes: the levels at which the metric is reported, separated by spaces: "run", "group", "model" or "round".
        of_model: the meaning for a model, if different from ``meaning``.
        decimals: the number of decimals of a mean over seeds, or ``None`` for the default of ``format``.
        interval: whether the run also reports the metric's 95 % interval.

    Raises:
        InputError: the key has spaces, or the format or a scope is unknown.

    Example:
        >>> from shoal.metrics import Metric
        >>> calibration = Metric("calibration_error", "calibration error", better="lower")
        >>> calibration.text(0.04321)
        '0.043'
    """

    key: str
    name: str
    meaning: str = ""
    format: Format = "decimal"
    better: Literal["higher", "lower"] | None = None
    scopes: str = "group model"
    of_model: str = ""
    decimals: int | None = None
    interval: bool = False

    def __post_init__(self) -> None:
        require(
            bool(self.key) and not set(" \t\n") & set(self.key),
            f"a metric's key must have no spaces (got '{self.key}')",
        )
        for name, words, choices in (
            ("format", [self.format], get_args(Format)),
            ("scopes", self.scopes.split(), get_args(Scope)),
        ):
            wrong = [word for word in words if word not in choices]
            require(not wrong, f"metric '{self.key}': '{name}' must be {one_of(choices)} (got {', '.join(wrong)})")

    @property
    def label(self) -> str:
        """The name, with the unit if the format has one."""
        return f"{self.name} (s)" if self.format == "seconds" else self.name

    def text(self, value: float | None) -> str:
        """Format a value for a page; a missing value is a dash."""
        return DASH if value is None or isnan(value) else _TEXTS[self.format](value)

    def plain(self, value: float | None, decimals: int | None = None) -> str:
        """Format a value or a mean for a table, without a unit; a missing value is a dash.

        >>> metric_of("violations").plain(1.25), metric_of("accuracy").plain(0.8123), metric_of("migrated").plain(1, 0)
        ('1.2', '0.812', '1')
        """
        places = next(p for p in (decimals, self.decimals, _DECIMALS[self.format]) if p is not None)
        return DASH if value is None or isnan(value) else f"{value:z,.{places}f}".replace("-", "\N{MINUS SIGN}")


def _table() -> dict[str, Metric]:
    """Return the metrics of `metrics.toml`, each followed by the ends of its interval if it has one."""
    table = {}
    for key, row in tomllib.loads((Path(__file__).parent / "metrics.toml").read_text(encoding="utf-8")).items():
        metric = table[key] = Metric(key, **row)
        for end, words in (("low", "lower end"), ("high", "upper end")) if metric.interval else ():
            name, meaning = f"{metric.name}, {words}", f"The {words} of the 95 % interval."
            end_key = f"{key}.{end}" if "." in key else f"{key}_{end}"
            table[end_key] = replace(metric, key=end_key, name=name, meaning=meaning, of_model=meaning, interval=False)
    return table


METRICS: Mapping[str, Metric] = _table()
"""Shoal's own metrics by key, in the order of pages."""

_FAMILIES: Mapping[str, tuple[str, Format]] = {
    "mia_by_": ("MIA accuracy, {}", "decimal"), "mia_against_": ("MIA accuracy against {}", "decimal"),
    "mia_auc_against_": ("MIA AUC against {}", "decimal"),
    "loss_threshold_against_": ("loss-threshold attack against {}", "decimal"),
    "baseline.": ("baseline {}", "decimal"), "auto.loss.": ("held-out loss with {} clusters", "number"),
    "directive.": ("directive {}", "decimal"), "epsilon.": ("epsilon, {}", "decimal"),
    "forgetting.": ("forgetting, {}", "number"),
    "seconds.share.": ("share of the time, {}", "percent"), "seconds.round.": ("time of a round, {}", "seconds"),
}  # fmt: skip
"""Names and formats of metrics per attack, group, setting, view or phase, by the prefix of their keys."""


def metric_of(
    key: str,
    *,
    measured: str = ACCURACY,
    declared: Mapping[str, Metric] | None = None,
    attack_title: Callable[[str], str] = str,
) -> Metric:
    """Return the metric of a key in `summary.json`, without the group or the model.

    An unknown key becomes the name of a new metric.

    Args:
        measured: the name of the metric that the run reports as accuracy.
        declared: the metrics of the user's measurements, by key.
        attack_title: a function from an attack's name in audit.json to its title.

    Example:
        >>> from shoal.metrics import metric_of
        >>> metric_of("mia_low").name, metric_of("mia_against_few").name, metric_of("directive.shorter_training").name
        ('MIA accuracy, lower end', 'MIA accuracy against few', 'directive shorter training')
        >>> metric_of("accuracy", measured="R2").text(-12.5), metric_of("mine").name
        ('-12.5', 'mine')
    """
    if declared and key in declared:
        return declared[key]
    if _family(key) in METRICS:
        return _measuring_classes(METRICS[_family(key)], measured)
    for prefix, (name, form) in _FAMILIES.items():
        if key.startswith(prefix):
            words = key.removeprefix(prefix)
            if prefix == "mia_by_":
                words = attack_title(words.replace("_", "-"))
            elif prefix in ("directive.", "forgetting.") or prefix.startswith("seconds."):
                words = words.replace("_", " ")
            return Metric(key, name.format(words), format=form, better=None if prefix == "directive." else "lower")
    return Metric(key, key, format="number")


def is_declared(key: str) -> bool:
    """Return whether the table of metrics has ``key``, which excludes the group or the model."""
    return _family(key) in METRICS or key.startswith(tuple(_FAMILIES))


def _family(key: str) -> str:
    """Return a key without the suffix ``.overall`` or ``.total``."""
    return key if key in METRICS else key.removesuffix(".overall").removesuffix(".total")


def _measuring_classes(metric: Metric, measured: str) -> Metric:
    """Return an accuracy metric with the name ``measured`` and the format "number"."""
    if measured == ACCURACY or metric.key not in ("accuracy", "train_accuracy"):
        return metric
    name, meaning = measured, "Mean over held-out examples of a client's own group; higher is better."
    if metric.key == "train_accuracy":
        name, meaning = f"train {measured}", "Mean over the clients' training examples."
    return replace(metric, name=name, meaning=meaning, of_model=meaning, format="number")
