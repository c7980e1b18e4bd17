"""An attack fitted several times on new shadow models: how strong it is on average, and how much that varies."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.audit.membership_audit import MembershipAudit, one_group_mix
from shoal.data import Federation
from shoal.metrics import MembershipMetrics
from shoal.metrics.summary import Metrics, Summary


@dataclass(frozen=True, eq=False)
class Refits:
    """The audits of one attack's fits on the same models, at least one, with the same members and non-members.

    It implements `AttackMetrics`.
    """

    audits: Sequence[MembershipAudit]

    def of_cluster(self, k: int) -> MembershipMetrics:
        """Model k: metrics of the first fit, with accuracy and interval averaged over the fits.

        The intervals are of the same members, so their mean is no narrower than that of the mean accuracy.
        """
        return _mean([audit.of_cluster(k) for audit in self.audits])

    def of_group(self, g: int) -> MembershipMetrics:
        """Group g, against non-members of its own: as `of_cluster`."""
        mix = one_group_mix(g, self.audits[0].federation)
        return _mean([audit.of_group(g, mix) for audit in self.audits])


_OVER_FITS = ("accuracy", "low", "high", "null_high")


def _mean(fits: Sequence[MembershipMetrics]) -> MembershipMetrics:
    means = {name: float(np.mean([getattr(each, name) for each in fits])) for name in _OVER_FITS}
    return replace(fits[0], **means)


def refit_metrics(deployed: Refits, shared: Refits, federation: Federation) -> Summary:
    """Mean and standard deviation over the fits of ``mia`` of each group and each cluster; nothing of one fit.

    Args:
        deployed: the audits of the models that clients use.
        shared: those of the clusters' models.
        federation: that was audited.
    """
    if len(deployed.audits) == 1:
        return Summary()
    groups, clusters = federation.groups_with_clients, shared.audits[0].trainers.shape[1]
    of_groups = {
        g: [audit.of_group(g, one_group_mix(g, federation)).accuracy for audit in deployed.audits] for g in groups
    }
    of_clusters = {k: [audit.of_cluster(k).accuracy for audit in shared.audits] for k in range(clusters)}
    return Summary(
        by_group={federation.groups[g]: _over(each) for g, each in of_groups.items()},
        by_cluster={k: _over(each) for k, each in of_clusters.items()},
    )


def _over(accuracies: Sequence[float]) -> Metrics:
    return {"mia_mean": float(np.mean(accuracies)), "mia_spread": float(np.std(accuracies, ddof=1))}
