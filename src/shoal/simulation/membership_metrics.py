"""What attacking the final models finds: figures by group and by cluster, and ROC curves."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from shoal.attacks import MembershipAudit, one_group_mix
from shoal.data import Federation
from shoal.metrics import MembershipMetrics, roc

Floats = NDArray[np.float64]

ROC_POINTS = 400
"""Points kept of each ROC curve; more than a picture can show."""


def of_groups(audit: MembershipAudit, by_loss: MembershipAudit | None, federation: Federation) -> dict[str, float]:
    """The figures of each group with clients, by summary key: its training examples against each kind of non-members.

    Args:
        audit: by the configured attack.
        by_loss: by a threshold on the loss; None where nothing was there to set it by.
        federation: that was attacked.
    """
    found: dict[str, float] = {}
    for g in federation.groups_with_clients:
        own, population = (audit.of_group(g, federation, mix) for mix in _kinds(g, federation).values())
        figures = _attack(own) | _attack(population, "_population")
        if by_loss is not None:
            threshold = by_loss.of_group(g, federation, one_group_mix(g, federation))
            figures |= {"loss_threshold": threshold.accuracy, "loss_threshold_auc": threshold.auc}
        for other, name in enumerate(federation.groups):
            if other != g:
                mix = one_group_mix(other, federation)
                against = audit.of_group(g, federation, mix)
                figures |= {f"mia_against_{name}": against.accuracy, f"mia_auc_against_{name}": against.auc}
                if by_loss is not None:
                    figures[f"loss_threshold_against_{name}"] = by_loss.of_group(g, federation, mix).accuracy
        found |= {f"{key}.{federation.groups[g]}": value for key, value in figures.items()}
    return found


def of_clusters(
    audit: MembershipAudit, exposure: Sequence[MembershipMetrics], risks: Tensor, federation: Federation
) -> dict[str, float]:
    """The figures of each cluster's model, by summary key.

    Args:
        audit: by the configured attack.
        exposure: of each model, to non-members of its members' mix of groups.
        risks: (K,) the red team's last estimates.
        federation: that was attacked.
    """
    found: dict[str, float] = {}
    for k, own in enumerate(exposure):
        population = audit.of_cluster_in_population(k, federation)
        figures = _attack(own) | _attack(population, "_population") | {"risk": float(risks[k])}
        found |= {f"clusters.{k}.{key}": value for key, value in figures.items()}
    return found


def curves(audit: MembershipAudit, federation: Federation) -> pd.DataFrame:
    """The rows of `roc.csv`: ROC curves of the attack by group with clients and kind of non-members."""
    found = [
        _curve(audit, federation, g, kind, mix)
        for g in federation.groups_with_clients
        for kind, mix in _kinds(g, federation).items()
    ]
    return pd.concat([curve for curve in found if len(curve)] or found[:1], ignore_index=True)


def _kinds(g: int, federation: Federation) -> dict[str, Floats]:
    """The mixes of groups that non-members of group g are mainly taken from, by name."""
    return {"group": one_group_mix(g, federation), "population": federation.group_fractions.numpy()}


def _attack(found: MembershipMetrics, non_members: str = "") -> dict[str, float]:
    """An attack's figures by key; ``non_members`` marks the kind of non-members in it."""
    return {
        f"mia{non_members}": found.accuracy,
        f"mia{non_members}_auc": found.auc,
        f"tpr_at_fpr_0.01{non_members}": found.tpr_at_1_percent_fpr,
        f"tpr_at_fpr_0.001{non_members}": found.tpr_at_01_percent_fpr,
    }


def _curve(audit: MembershipAudit, federation: Federation, g: int, kind: str, mix: Floats) -> pd.DataFrame:
    scores, member, weight = audit.group_scores(g, federation, mix)
    if member.all() or not member.any():
        return pd.DataFrame({"group": [], "non_members": [], "fpr": [], "tpr": []})
    fpr, tpr = roc(scores, member, weight)
    if len(fpr) > ROC_POINTS:
        # Evenly in the logarithm of the false positive rate, since the picture's axes are logarithmic.
        wanted = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, ROC_POINTS - 1)])
        keep = np.unique(np.searchsorted(fpr, wanted, side="right") - 1)
        fpr, tpr = fpr[keep], tpr[keep]
    return pd.DataFrame({"group": federation.groups[g], "non_members": kind, "fpr": fpr, "tpr": tpr})
