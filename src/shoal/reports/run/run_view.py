"""A finished run as its page shows it: who has clients, how many models there are, and whose limit is exceeded."""

from dataclasses import dataclass
from functools import cached_property
from math import nan

import pandas as pd

from shoal.audit.finding import attack_title, run_findings
from shoal.metrics.metric_table import Metric, metric_of
from shoal.metrics.summary import Metrics, Summary, accuracy_key
from shoal.reports.run.description import RunDescription

EXCEEDED, UNCERTAIN, WITHIN_LIMIT, UNKNOWN = "exceeded", "uncertain", "within", "not measured"
"""What can be said of a client's limit, in the column ``limit``."""


@dataclass(frozen=True, eq=False)
class RunView:
    """A finished run.

    Args:
        run: how it was made.
        summary: its metrics.
        rounds: one row per round and cluster.
        clients: one row per client, with the columns of `with_limits`.
    """

    run: RunDescription
    summary: Summary
    rounds: pd.DataFrame
    clients: pd.DataFrame

    @staticmethod
    def of(run: RunDescription, summary: Summary, rounds: pd.DataFrame, clients: pd.DataFrame) -> "RunView":
        """The view of a run whose ``clients`` are the rows of clients.csv."""
        if strongest_attacks(summary):
            clients = clients.assign(attack=clients["attack"].map(attack_title))
        return RunView(run, summary, rounds, with_limits(clients))

    @cached_property
    def groups(self) -> list[str]:
        """Those with clients."""
        present = {*self.clients["group"]}
        return [name for name in self.run.groups if name in present]

    @property
    def others(self) -> list[str]:
        """Groups without clients, of which there are only non-members."""
        return [name for name in self.run.groups if name not in self.groups]

    @property
    def clusters(self) -> int:
        """K, the number of models."""
        return int(self.rounds["cluster"].max()) + 1

    @property
    def at_end(self) -> dict[int, int]:
        """Clients of each cluster after the last round."""
        return {k: int((self.clients["cluster"] == k).sum()) for k in range(self.clusters)}

    @property
    def estimated(self) -> bool:
        """Whether the red team ever estimated a risk."""
        return bool((self.rounds["risk"].fillna(0.5) != 0.5).any())

    @property
    def references(self) -> int:
        """The number of reference federations; 0: the configured attack decides."""
        return reference_federations(self.summary)

    @property
    def non_members(self) -> Metrics:
        """Those of each group."""
        by_group = self.summary.by_group
        return {name: by_group.get(name, {}).get("non_members", nan) for name in self.groups}

    def metric(self, key: str) -> Metric:
        """The metric of a key, as this run reports it."""
        declared = {metric.key: metric for metric in self.run.metrics}
        return metric_of(key, measured=self.run.metric, declared=declared, attack_title=attack_title)


def reference_federations(summary: Summary) -> int:
    """The number of reference federations of a run; 0: the configured attack decides how exposed it is."""
    return int(summary.overall.get("references", 0))


def accuracies_by_attack(metrics: Metrics) -> dict[str, float]:
    """Each attack's balanced accuracy on a group by the attack's title, the strongest first.

    >>> accuracies_by_attack({"mia": 0.6, "mia_by_gap": 0.55, "mia_by_rmia_offline": 0.6})
    {'offline RMIA': 0.6, 'gap': 0.55}
    """
    prefix = accuracy_key("")
    accuracies = {attack_title(key.removeprefix(prefix).replace("_", "-")): value
             for key, value in metrics.items() if key.startswith(prefix)}  # fmt: skip
    return dict(sorted(accuracies.items(), key=lambda pair: -pair[1]))


def strongest_attacks(summary: Summary) -> dict[str, str]:
    """The title of the attack that decides about each group; nothing where only the configured attack was measured."""
    return {one.group: one.title for one in run_findings(summary) if one.attack}


def with_limits(clients: pd.DataFrame) -> pd.DataFrame:
    """The rows of clients.csv with what they say of limits, in further columns.

    - ``over``: whether the limit is exceeded at 95 % confidence.
    - ``margin``: how far the limit is exceeded by the lower end of the exposure's interval, negative below it.
    - ``limit``: one of `EXCEEDED`, `UNCERTAIN` (above the limit by a point estimate alone), `WITHIN_LIMIT`, `UNKNOWN`.
    """
    threshold, exposure, over = clients["threshold"], clients["exposure"], clients["exceeded"].fillna(0) > 0
    above = (exposure > threshold) | (clients["violated"].fillna(0) > 0)
    limit = pd.Series(WITHIN_LIMIT, clients.index).mask(above, UNCERTAIN)
    limit = limit.mask(exposure.isna() | threshold.isna(), UNKNOWN).mask(over, EXCEEDED)
    return clients.assign(over=over, margin=clients["exposure_low"].fillna(exposure) - threshold, limit=limit)
