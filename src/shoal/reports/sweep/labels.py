"""Names of axes, their settings, and metrics in tables and figures."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.config.kinds import algorithm_title
from shoal.reports.sweep.spec import Axes, Selection, Spread, Value

AXES = {
    "algorithm.name": "algorithm",
    "data.groups.minority.share": "minority's share of the clients",
    "data.examples_per_client": "images per client",
    "data.source": "data",
    "red_team.estimator": "estimator",
    "seed": "seed",
}
"""Names of axes."""

KEYS = {
    "adjusted_rand_index": "recovered grouping (ARI)",
    "epsilon": "epsilon",
    "fairness.demographic_parity": "demographic parity difference",
    "fairness.equal_opportunity": "equal opportunity difference",
    "fairness.equalized_odds": "equalized odds difference",
    "migrated": "migrated clients",
    "rounds": "rounds",
    "seconds.choose": "seconds, choosing",
    "seconds.red_team": "seconds, red team",
    "seconds.total": "seconds",
    "seconds.train": "seconds, training",
    "seed": "seed",
}
"""Names of metrics."""

FAMILIES = {
    "accuracy": "accuracy",
    "clients": "clients",
    "examples": "training images",
    "gap": "gap attack",
    "loss_threshold": "loss-threshold attack",
    "loss_threshold_auc": "loss-threshold AUC",
    "mia": "MIA accuracy",
    "mia_auc": "MIA AUC",
    "mia_population": "MIA accuracy, population non-members",
    "mia_population_auc": "MIA AUC, population non-members",
    "risk": "red-team risk",
    "tpr_at_fpr_0.001": "TPR at 0.1 % FPR",
    "tpr_at_fpr_0.001_population": "TPR at 0.1 % FPR, population non-members",
    "tpr_at_fpr_0.01": "TPR at 1 % FPR",
    "tpr_at_fpr_0.01_population": "TPR at 1 % FPR, population non-members",
    "train_accuracy": "train accuracy",
    "train_loss": "train loss",
    "violations": "violations",
}
"""Names of metrics of groups, as in ``mia.minority``, and of models, as in ``larger.mia``."""

EVERYONE = ("overall", "total")
"""In a group's place in metrics of all clients."""

SPREADS: Mapping[Spread, str] = {
    "sd": "one standard deviation",
    "ci": "half the width of the 95 % confidence interval (Student's t)",
}
"""What follows ±, and how far error bars and bands reach."""

_FAMILY = "|".join(map(re.escape, FAMILIES))
_KEY = re.compile(
    rf"(?P<size>larger|smaller|clusters\.\d+)\.(?P<a>{_FAMILY})|model\.(?P<chosen>.+?)\.(?P<b>{_FAMILY})"
    rf"|(?P<c>{_FAMILY})(\.(?P<group>.+))?"
)


def split_key(name: str) -> tuple[str, str]:
    """The family of a metric and whose it is, in words; empty for a metric of no family, or of nobody.

    >>> split_key("mia.far.north"), split_key("clusters.3.mia"), split_key("model.far.north.mia"), split_key("migrated")
    (('mia', 'far.north'), ('mia', 'model 3'), ('mia', 'model of far.north'), ('', ''))
    """
    parts = _KEY.fullmatch(name)
    if parts is None:
        return "", ""
    whose = parts["group"] or ""
    if parts["chosen"]:
        whose = f"model of {parts['chosen']}"
    elif parts["size"]:
        whose = f"{parts['size']} model" if parts["size"] in ("larger", "smaller") else f"model {parts['size'][9:]}"
    return parts["a"] or parts["b"] or parts["c"], whose


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
        return ", ".join(filter(None, (FAMILIES[family], "all clients" if whose in EVERYONE else named)))

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
