"""What axes, their settings, and figures are called where people read them."""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.experiments.sweeps.shown import Value
from shoal.experiments.verdict import NAMES

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
    "accuracy.overall": "accuracy, all clients",
    "violations.total": "violations, all clients",
    "migrated": "migrated clients",
    "adjusted_rand_index": "recovered grouping (ARI)",
    "fairness.demographic_parity": "demographic parity difference",
    "fairness.equal_opportunity": "equal opportunity difference",
    "fairness.equalized_odds": "equalized odds difference",
}
"""Names of figures."""


@dataclass(frozen=True)
class Words:
    """Words for a sweep: its own labels first, then the usual ones, then the name itself."""

    labels: Mapping[str, str]

    def axis(self, name: str) -> str:
        """An axis."""
        return self.labels.get(name) or AXES.get(name, name)

    def setting(self, value: Value) -> str:
        """A setting of an axis."""
        text = str(value)
        return self.labels.get(text) or NAMES.get(text, text)

    def key(self, name: str) -> str:
        """A figure of results.csv or rounds.csv."""
        return self.labels.get(name) or KEYS.get(name, name)
