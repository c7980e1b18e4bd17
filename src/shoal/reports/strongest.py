"""Which attack decides about a run's exposure, where reference federations were trained for it."""

from shoal.metrics.summary import Metrics, Summary, accuracy_key
from shoal.reports.attack_titles import attack_title

_PREFIX = accuracy_key("")


def reference_federations(summary: Summary) -> int:
    """How many were trained for a run; 0: the configured attack decides."""
    return int(summary.overall.get("references", 0))


def accuracies_by_attack(metrics: Metrics) -> dict[str, float]:
    """Each attack's balanced accuracy on a group by the attack's title, the strongest first.

    >>> accuracies_by_attack({"mia": 0.6, "mia_by_gap": 0.55, "mia_by_rmia_offline": 0.6})
    {'RMIA, offline': 0.6, 'Gap attack': 0.55}
    """
    found = {
        attack_title(key.removeprefix(_PREFIX).replace("_", "-")): value
        for key, value in metrics.items()
        if key.startswith(_PREFIX)
    }
    return dict(sorted(found.items(), key=lambda each: -each[1]))


def strongest_attacks(summary: Summary) -> dict[str, str]:
    """The title of the attack that decides about each group; nothing without reference federations."""
    found = {name: accuracies_by_attack(metrics) for name, metrics in summary.by_group.items()}
    decides = {
        # A group's `mia` is that of the attack that decides, which need not be the largest.
        name: next((title for title, value in values.items() if value == summary.by_group[name].get("mia")), None)
        for name, values in found.items()
    }
    return {name: title or next(iter(found[name])) for name, title in decides.items() if found[name]}
