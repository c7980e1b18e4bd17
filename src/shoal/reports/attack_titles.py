"""What attacks are called in text, and who their attackers are."""

from collections.abc import Mapping

import shoal.attacks
from shoal.attacks import ShadowModelAttack, SourceInference, Stack
from shoal.audit.records import AGAINST_CLIENTS
from shoal.core.formats import capitalized

_DECLARED = [attack for attack in vars(shoal.attacks).values() if isinstance(attack, type) and hasattr(attack, "title")]

TITLES: Mapping[str, str] = {getattr(attack, "name"): getattr(attack, "title") for attack in _DECLARED} | {  # noqa: B009
    "posterior": ShadowModelAttack.title,
    "label-only": "label only",
    "boundary-distance": "boundary distance",
    "stack-client": f"{Stack.title}, a client's too",
    "stack-server": f"{Stack.title}, the server's too",
    "source-inference-in-cluster": f"{SourceInference.title} in the cluster",
    "client-membership": "membership of clients",
}
"""Attacks by their names in audit.json and in files: as each declares itself, and those that are no class."""

WEAK = ("posterior", "loss-threshold", "gap")
"""Attacks without reference models of the same records, which audits of federations usually end with."""

ATTACKERS: Mapping[str, str] = {
    "outsider": "has the final models",
    "client": "is sent the initial model and the models of all clusters in every round",
    "server": "sees the update of every client",
}
"""Attackers by their views, and what they have beside those before them."""

WHO: Mapping[str, str] = {
    "outsider": "Somebody with the released models",
    "client": "Another client of the federation, who sees every round",
    "server": "The server, who sees every client's updates",
}
"""Who an attacker is, by its view, at the beginning of a sentence."""

BY: Mapping[str, str] = {"outsider": "an outsider", "client": "a client", "server": "the server"}
"""The same within a sentence."""


def attack_head(name: str) -> str:
    """The title of an attack at the beginning of a line; a name that is no title stays as it is."""
    title = attack_title(name)
    return capitalized(title) if name.removesuffix(AGAINST_CLIENTS) in TITLES else title


def attack_title(name: str) -> str:
    """What an attack is called within a sentence; its name where it declares no title.

    >>> attack_title("lira-offline"), attack_title("fedmia-i-others"), attack_title("my-attack")
    ('offline LiRA', 'FedMIA-I, other clients', 'my-attack')
    """
    attack = name.removesuffix(AGAINST_CLIENTS)
    return TITLES.get(name) or (f"{TITLES[attack]}, other clients" if attack in TITLES else name)
