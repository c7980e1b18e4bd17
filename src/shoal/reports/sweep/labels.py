"""What tables and figures say: names of axes, their settings and metrics, and numbers as text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan

from shoal.config.coordinator_section import BELIEFS
from shoal.config.kinds import algorithm_title
from shoal.control import COLUMN
from shoal.metrics.summary import accuracy_key
from shoal.reports.audit.attack_titles import TITLES
from shoal.reports.formats import DASH
from shoal.reports.sweep.report_spec import Axes, Selection, Spread, Value

AXES = {
    "algorithm.name": "algorithm",
    "data.groups.minority.share": "minority's share of the clients",
    "data.examples_per_client": "examples per client",
    "data.source": "data",
    "red_team.estimator": "estimator",
}

KEYS = {
    "adjusted_rand_index": "recovered grouping (ARI)",
    "fairness.demographic_parity": "demographic parity difference",
    "fairness.equal_opportunity": "equal opportunity difference",
    "fairness.equalized_odds": "equalized odds difference",
    "migrated": "migrated clients",
    "references": "reference federations",
    "seconds.choose": "seconds, choosing",
    "seconds.evaluation": "seconds, evaluation",
    "seconds.files": "seconds, files",
    "seconds.measurement": "seconds, measurement",
    "seconds.red_team": "seconds, red team",
    "seconds.references": "seconds, reference federations",
    "seconds.total": "seconds",
    "seconds.train": "seconds, training",
}

FAMILIES = {
    "accuracy": "accuracy",
    "clients": "clients",
    "examples": "training examples",
    "exceeded": "limits exceeded for certain",
    "gap": "gap attack",
    "limit_unmet": "limits out of reach",
    "loss_threshold": "loss-threshold attack",
    "loss_threshold_auc": "loss-threshold AUC",
    "loss_threshold_high": "loss-threshold attack, upper end",
    "loss_threshold_low": "loss-threshold attack, lower end",
    "mia": "MIA accuracy",
    "mia_auc": "MIA AUC",
    "mia_high": "MIA accuracy, upper end",
    "mia_low": "MIA accuracy, lower end",
    "mia_null_high": "MIA accuracy, 95 % of tests at chance",
    "mia_population": "MIA accuracy, population non-members",
    "mia_population_auc": "MIA AUC, population non-members",
    "most_frequent_class": "share of the most frequent class",
    "over_limit": "share of members over their limit",
    "risk": "red-team risk",
    "test_examples": "test examples",
    "tpr_at_fpr_0.001": "TPR at 0.1 % FPR",
    "tpr_at_fpr_0.001_population": "TPR at 0.1 % FPR, population non-members",
    "tpr_at_fpr_0.01": "TPR at 1 % FPR",
    "tpr_at_fpr_0.01_population": "TPR at 1 % FPR, population non-members",
    "train_accuracy": "train accuracy",
    "train_loss": "train loss",
    "violations": "violations",
}
FAMILIES |= {accuracy_key(attack): f"MIA accuracy, {title}" for attack, title in TITLES.items()}
FAMILIES |= {f"{COLUMN}{name}": f"directive {name.replace('_', ' ')}" for name in (*BELIEFS, "price")}
"""Names of metrics of groups, as in ``mia.minority``, and of models, as in ``larger.mia``."""

SPREADS: Mapping[Spread, str] = {
    "sd": "one standard deviation",
    "ci": "half the width of the 95 % confidence interval (Student's t)",
}
"""What follows ±, and how far error bars and bands reach."""

_KEY = re.compile(
    r"((?P<model>larger|smaller|clusters\.\d+|model\..+?)\.)?"
    rf"(?P<family>{'|'.join(map(re.escape, FAMILIES))})(?(model)|(\.(?P<group>.+))?)"
)


def split_key(name: str) -> tuple[str, str]:
    """The family of a metric and whose it is, in words; empty for a metric of no family, or of nobody.

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


def decimals_of(key: str) -> int:
    """The decimals of a metric: 1 for counts and seconds; otherwise 3, and 4 at a false positive rate of 0.1 %.

    >>> decimals_of("violations.minority"), decimals_of("seconds.total"), decimals_of("mia.minority")
    (1, 1, 3)
    """
    family, _ = split_key(key)
    if (
        family in ("clients", "examples", "exceeded", "test_examples", "violations")
        or key in ("migrated", "references", "rounds")
        or key.startswith("seconds.")
    ):
        return 1
    return 4 if family.startswith("tpr_at_fpr_0.001") else 3


def format_value(value: float, key: str, decimals: int | None = None) -> str:
    """A value of the metric ``key`` with its decimals and a true minus sign; a dash for NaN."""
    places = decimals_of(key) if decimals is None else decimals
    return DASH if isnan(value) else f"{value:z,.{places}f}".replace("-", "\N{MINUS SIGN}")


def format_estimate(mean: float, spread: float, n: int, key: str, seeds: int) -> str:
    """A mean over ``n`` seeds with its spread, and with ``n`` where that is not all ``seeds``.

    >>> format_estimate(0.8123, 0.0101, 4, "accuracy.overall", seeds=5)
    '0.812 ± 0.010 (n = 4)'
    """
    text = format_value(mean, key) + (f" ± {format_value(spread, key)}" if n > 1 else "")
    return text if n in (0, seeds) else f"{text} (n = {n})"


@dataclass(frozen=True)
class Labels:
    """Names for a sweep: its own labels first, then the usual names, then the key itself."""

    labels: Mapping[str, str]

    def axis(self, name: str) -> str:
        """The name of an axis."""
        return self.labels.get(name) or AXES.get(name, name)

    def setting(self, value: Value) -> str:
        """The name of a setting; true and false as TOML writes them."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return self.labels.get(text) or algorithm_title(text)

    def key(self, name: str) -> str:
        """The name of a metric of results.csv or rounds.csv.

        >>> labels = Labels({"far": "far away"})
        >>> labels.key("accuracy.overall"), labels.key("tpr_at_fpr_0.01.far"), labels.key("smaller.mia")
        ('accuracy, all clients', 'TPR at 1 % FPR, far away', 'MIA accuracy, smaller model')
        """
        known = self.labels.get(name) or KEYS.get(name)
        family, whose = split_key(name)
        if known or not family:
            return known or name
        group = whose.removeprefix("model of ")
        named = whose.removesuffix(group) + self.labels.get(group, group)
        return ", ".join(filter(None, (FAMILIES[family], "all clients" if whose in ("overall", "total") else named)))

    def selection(self, spec: Selection, axes: Axes) -> list[str]:
        """Sentences on what is held and what is averaged over."""
        sentences = []
        if spec.where:
            held = ", ".join(f"{self.axis(axis)} = {self.setting(value)}" for axis, value in spec.where.items())
            sentences.append(f"Held: {held}.")
        if spec.average:
            over = [f"{self.axis(axis)} ({', '.join(map(self.setting, axes[axis]))})" for axis in spec.average]
            sentences.append(f"Each seed is first averaged over {' and '.join(over)}.")
        return sentences


def capitalised(sentence: str) -> str:
    """``sentence`` with its first letter in upper case."""
    return sentence[:1].upper() + sentence[1:]
