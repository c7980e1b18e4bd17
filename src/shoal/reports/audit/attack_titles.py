"""What attacks are called on a page, and who their attackers are."""

from collections.abc import Mapping

from shoal.audit.update_audit import OTHERS

TITLES: Mapping[str, str] = {
    "lira": "LiRA",
    "lira-offline": "LiRA, offline",
    "rmia": "RMIA",
    "rmia-offline": "RMIA, offline",
    "bavaria": "BaVarIA",
    "calibration": "Difficulty calibration",
    "loss": "Loss attack",
    "loss-threshold": "Loss threshold",
    "gap": "Gap attack",
    "posterior": "Posterior attack",
    "other-clusters": "Other clusters' models",
    "fedmia-i": "FedMIA-I",
    "fedmia-ii": "FedMIA-II",
    "grad-cosine": "Gradient cosine",
    "grad-diff": "Gradient difference",
    "label-only": "Label only",
    "boundary-distance": "Boundary distance",
    "trajectory": "Loss trajectory",
    "source-inference": "Source inference",
    "source-inference-in-cluster": "Source inference in the cluster",
    "group-inference": "Group inference",
    "cluster-identity": "Cluster identity",
    "preference-inference": "Preference inference",
    "reconstruction": "Reconstruction of updates from released models",
}
"""Attacks by their keys in audit.json."""

WEAK = ("posterior", "loss-threshold", "gap")
"""Attacks without reference models of the same records, which audits of federations usually end with."""

ATTACKERS: Mapping[str, str] = {
    "outsider": "has the released models, and asks of each record the one that its client uses",
    "client": "is sent the models of all clusters",
    "server": "sees the update of every client",
}
"""Attackers by their names, and what they have."""


def attack_title(key: str) -> str:
    """What an attack is called; its key where it has no other name.

    >>> attack_title("lira"), attack_title("fedmia-i-others"), attack_title("my-attack")
    ('LiRA', 'FedMIA-I, other clients', 'my-attack')
    """
    attack = key.removesuffix(OTHERS)
    return TITLES.get(key) or (f"{TITLES[attack]}, other clients" if attack in TITLES else key)
