"""What axes, their settings, and figures are called where people read them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.reports.summary_text import NAMES
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
"""Names of figures."""

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
"""Names of figures that there are of each group, as in ``mia.minority``, or of each model, as in ``larger.mia``."""

SPREADS: Mapping[Spread, str] = {
    "sd": "one standard deviation",
    "ci": "half the width of the 95 % confidence interval (Student's t)",
}
"""What stands after ±, and how far error bars and bands reach."""

EVERYONE = ("overall", "total")
"""What stands in a group's place in figures of all clients."""


@dataclass(frozen=True)
class Words:
    """Words for a sweep: its own labels first, then the usual ones, then the name itself."""

    labels: Mapping[str, str]

    def axis(self, name: str) -> str:
        """An axis."""
        return self.labels.get(name) or AXES.get(name, name)

    def setting(self, value: Value) -> str:
        """A setting of an axis; true and false as TOML writes them."""
        text = str(value).lower() if isinstance(value, bool) else str(value)
        return self.labels.get(text) or NAMES.get(text, text)

    def key(self, name: str) -> str:
        """A figure of results.csv or rounds.csv.

        >>> words = Words({"far": "far away"})
        >>> words.key("accuracy.overall"), words.key("tpr_at_fpr_0.01.far"), words.key("smaller.mia")
        ('accuracy, all clients', 'TPR at 1 % FPR, far away', 'MIA accuracy, smaller model')
        """
        return self.labels.get(name) or KEYS.get(name) or self._by_family(name) or name

    def selection(self, asked: Selection, axes: Axes) -> list[str]:
        """Sentences on what is held and what is averaged over."""
        told = []
        if asked.where:
            held = ", ".join(f"{self.axis(axis)} = {self.setting(value)}" for axis, value in asked.where.items())
            told.append(f"Held: {held}.")
        if asked.average:
            over = [f"{self.axis(axis)} ({', '.join(map(self.setting, axes[axis]))})" for axis in asked.average]
            told.append(f"Each seed is first averaged over {' and '.join(over)}.")
        return told

    def _by_family(self, name: str) -> str:
        """Of a model or of a group; empty where it is neither."""
        family, whose = split_key(name)
        if not family:
            return ""
        if whose in EVERYONE:
            whose = "all clients"
        of, group = ("model of ", whose[9:]) if whose.startswith("model of ") else ("", whose)
        return ", ".join(part for part in (FAMILIES[family], of + self.labels.get(group, group)) if part)


def split_key(name: str) -> tuple[str, str]:
    """A figure's family and whose it is, in words; empty where it belongs to no family, or to nobody.

    >>> split_key("mia_auc.far.north"), split_key("clusters.0.mia"), split_key("risk"), split_key("migrated")
    (('mia_auc', 'far.north'), ('mia', 'model 0'), ('risk', ''), ('', ''))
    >>> split_key("model.far.north.mia")
    ('mia', 'model of far.north')
    """
    if name in FAMILIES:
        return name, ""
    of_model = re.fullmatch(r"(larger|smaller|clusters\.\d+)\.(.+)", name)
    if of_model and of_model[2] in FAMILIES:
        return of_model[2], f"model {of_model[1][9:]}" if "." in of_model[1] else f"{of_model[1]} model"
    if name.startswith("model."):
        # A group's name may have dots, and so may a family's: the longest family that fits.
        family = max((each for each in FAMILIES if name.endswith(f".{each}")), key=len, default="")
        group = name.removeprefix("model.").removesuffix(f".{family}")
        return (family, f"model of {group}") if family and group else ("", "")
    family = next((each for each in FAMILIES if name.startswith(f"{each}.")), "")
    return family, name.removeprefix(f"{family}.") if family else ""
