"""What tables and figures of a sweep call their axes, settings and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.config.kinds import algorithm_title
from shoal.reports.sweep.report_spec import Axes, Selection, Spread, Value
from shoal.reports.sweep.sweep_metrics import metric_at, split_key

AXES = {
    "algorithm.name": "algorithm",
    "data.groups.minority.share": "minority's share of the clients",
    "data.examples_per_client": "examples per client",
    "data.source": "data",
    "red_team.estimator": "estimator",
}

SPREADS: Mapping[Spread, str] = {
    "sd": "one standard deviation",
    "ci": "half the width of the 95 % confidence interval (Student's t)",
}
"""What follows ±, and how far error bars and bands reach."""


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
        if name in self.labels:
            return self.labels[name]
        owner = split_key(name)[1]
        group = owner.removeprefix("model of ")
        owner_name = owner.removesuffix(group) + self.labels.get(group, group)
        owner_name = "all clients" if owner in ("overall", "total") else owner_name
        return ", ".join(filter(None, (metric_at(name).label, owner_name)))

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
