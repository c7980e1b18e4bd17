"""The membership inference attacks on the final models: metrics by group and by cluster, and ROC curves."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from torch import Tensor

from shoal.audit.attack_metrics import AttackMetrics, accuracy_key, strongest
from shoal.audit.membership_audit import MembershipAudit, one_group_mix
from shoal.data import Federation
from shoal.metrics import MembershipMetrics, roc
from shoal.metrics.summary import Metrics, Summary

Floats = NDArray[np.float64]

Attacks = Mapping[str, AttackMetrics]
"""What attacks find, by their keys in audit.json."""

ROC_POINTS = 400
"""Points kept of each ROC curve; more than a figure can show."""


def of_groups(
    audit: MembershipAudit,
    by_loss: MembershipAudit | None,
    federation: Federation,
    judged_by: Attacks | None = None,
) -> Summary:
    """Each group with clients: its training examples against each kind of non-members.

    Args:
        audit: by the configured attack.
        by_loss: by a threshold on the loss; None where there were no records to set it by.
        judged_by: attacks of which the `strongest` decides about members and non-members of the group itself, each also
            told by itself; None: the configured one decides.
    """
    by_group = {g: _of_group(g, audit, by_loss, federation) for g in federation.groups_with_clients}
    if judged_by is not None:
        by_group = {g: {**metrics, **_judged_group(g, judged_by)} for g, metrics in by_group.items()}
    return Summary(by_group={federation.groups[g]: metrics for g, metrics in by_group.items()})


def _judged_group(g: int, attacks: Attacks) -> Metrics:
    found = {name: attack.of_group(g) for name, attack in attacks.items()}
    name, low = strongest(found)
    best = found[name]
    metrics = (
        _attack(best)
        | {"mia_low": low, "mia_high": best.high}
        | {"members": best.members, "non_members": best.non_members}
    )
    return metrics | {accuracy_key(name): each.accuracy for name, each in found.items()}


def _of_group(g: int, audit: MembershipAudit, by_loss: MembershipAudit | None, federation: Federation) -> Metrics:
    own, population = (audit.of_group(g, mix) for mix in _mixes(g, federation).values())
    metrics = _attack(own) | _attack(population, "_population") | _interval("mia", own)
    metrics |= {"members": own.members, "non_members": own.non_members}
    if by_loss is not None:
        threshold = by_loss.of_group(g, one_group_mix(g, federation))
        metrics |= {"loss_threshold": threshold.accuracy, "loss_threshold_auc": threshold.auc}
        metrics |= _interval("loss_threshold", threshold)
    for other, name in enumerate(federation.groups):
        if other != g:
            mix = one_group_mix(other, federation)
            against = audit.of_group(g, mix)
            metrics |= {f"mia_against_{name}": against.accuracy, f"mia_auc_against_{name}": against.auc}
            if by_loss is not None:
                metrics[f"loss_threshold_against_{name}"] = by_loss.of_group(g, mix).accuracy
    return metrics


def of_clusters(audit: MembershipAudit, risks: Tensor, judged_by: Attacks | None = None) -> Summary:
    """Each cluster's model.

    Args:
        audit: of the clusters' models, by the configured attack.
        risks: (K,) the red team's last estimates.
        judged_by: attacks on these models of which the `strongest` decides about non-members with the members' mix of
            groups; None: the configured one decides.
    """
    clusters: dict[int, Metrics] = {}
    for k in range(len(risks)):
        own = audit.of_cluster(k) if judged_by is None else _strongest_on(k, judged_by)
        population = audit.of_cluster(k, population=True)
        clusters[k] = {**_attack(own), **_attack(population, "_population"), "risk": float(risks[k])}
    return Summary(by_cluster=clusters)


def of_models(audit: MembershipAudit, judged_by: Attacks | None = None) -> Floats:
    """(S,) balanced accuracy on each model, by the configured attack, or by the strongest of ``judged_by``."""
    models = range(audit.trainers.shape[1])
    found = [audit.of_cluster(s) if judged_by is None else _strongest_on(s, judged_by) for s in models]
    return np.array([each.accuracy for each in found])


def _strongest_on(k: int, attacks: Attacks) -> MembershipMetrics:
    found = {name: attack.of_cluster(k) for name, attack in attacks.items()}
    return found[strongest(found)[0]]


def roc_curves(audit: MembershipAudit, federation: Federation) -> pd.DataFrame:
    """The rows of `roc.csv`: ROC curves of the attack by group with clients and kind of non-members."""
    curves = [
        _curve(audit, federation, g, kind, mix)
        for g in federation.groups_with_clients
        for kind, mix in _mixes(g, federation).items()
    ]
    return pd.concat([curve for curve in curves if len(curve)] or curves[:1], ignore_index=True)


def _mixes(g: int, federation: Federation) -> Mapping[str, Floats]:
    """(G,) shares of the groups among the non-members of group g, by kind of non-members."""
    return {"group": one_group_mix(g, federation), "population": federation.group_fractions.numpy()}


def _attack(measured: MembershipMetrics, non_members: str = "") -> dict[str, float]:
    """An attack's metrics by name; ``non_members`` is the part of the name that says their kind."""
    return {
        f"mia{non_members}": measured.accuracy,
        **({} if non_members else {"mia_null_high": measured.null_high}),
        f"mia{non_members}_auc": measured.auc,
        f"tpr_at_fpr_0.01{non_members}": measured.tpr_at_1_percent_fpr,
        f"tpr_at_fpr_0.001{non_members}": measured.tpr_at_01_percent_fpr,
    }


def _interval(metric: str, measured: MembershipMetrics) -> dict[str, float]:
    """The ends of the 95 % interval of an attack's balanced accuracy, which is called ``metric``."""
    return {f"{metric}_low": measured.low, f"{metric}_high": measured.high}


def _curve(audit: MembershipAudit, federation: Federation, g: int, kind: str, mix: Floats) -> pd.DataFrame:
    scores, member, weight = audit.group_scores(g, mix)
    if member.all() or not member.any():
        return pd.DataFrame({"group": [], "non_members": [], "fpr": [], "tpr": []})
    fpr, tpr = roc(scores, member, weight)
    if len(fpr) > ROC_POINTS:
        # Evenly in the logarithm of the false positive rate, since the figure's axes are logarithmic.
        rates = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, ROC_POINTS - 1)])
        keep = np.unique(np.searchsorted(fpr, rates, side="right") - 1)
        fpr, tpr = fpr[keep], tpr[keep]
    return pd.DataFrame({"group": federation.groups[g], "non_members": kind, "fpr": fpr, "tpr": tpr})
