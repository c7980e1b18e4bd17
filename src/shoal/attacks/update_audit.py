"""How well a membership attack on clients' updates finds members, against two kinds of non-members."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.attacks.update_scores import NOBODY, UpdateAttack, UpdateScores
from shoal.metrics import MembershipMetrics, membership_metrics

_MEMBER, _UNUSED, _OTHERS = 0, 1, 2


@dataclass(frozen=True)
class UpdateAudit:
    """The outcome of an attack on the updates of every client in turn: M records asked of each of N clients.

    Args:
        unused: members against records that nobody trained on, the comparison that says what is exposed.
        others: members against other clients' records. In the null of FedMIA these have their owner, a member of its
            own update, so they look less like members than records that nobody trained on.
        by_client: `unused` of each client, by its id.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import GradCosine, OwnedRecords, audit_updates, update_scores
        >>> draw = shoal.Stream(0).generator()
        >>> clients = [(torch.randn(4, 50, generator=draw), [0, 1, 0, 1]) for _ in range(5)]
        >>> federation = shoal.Federation.from_tensors(clients, test=(torch.randn(20, 50, generator=draw), [0, 1] * 10))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=50, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     training = shoal.Training(*setting, record_every=1)
        ...     _, report = training.round(training.start())
        ...     scores = update_scores([report.updates], OwnedRecords.of(federation), engine)
        ...
        >>> audit = audit_updates(GradCosine(), scores)
        >>> sorted(audit.by_client), audit.others.auc > 0.9, audit.unused.members
        ([0, 1, 2, 3, 4], True, 20)
    """

    unused: MembershipMetrics
    others: MembershipMetrics
    by_client: dict[int, MembershipMetrics]


def audit_updates(attack: UpdateAttack, scores: UpdateScores, group: str | None = None) -> UpdateAudit:
    """Attack every client that was seen, or those of one group.

    A client's non-members are of the groups of its own records, or the attack would also count who is of which group.
    A record that nobody trained on is asked of many clients, so intervals over all clients are somewhat too narrow.

    Args:
        attack: on the updates.
        scores: of recorded rounds.
        group: name of a group; None: all clients.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import GradCosine, OwnedRecords, audit_updates, update_scores
        >>> draw = shoal.Stream(0).generator()
        >>> clients = [(torch.randn(4, 50, generator=draw), [0, 1, 0, 1]) for _ in range(5)]
        >>> federation = shoal.Federation.from_tensors(clients, test=(torch.randn(20, 50, generator=draw), [0, 1] * 10))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=50, classes=2))
        >>> with shoal.Engine(model) as engine:
        ...     setting = (federation, shoal.FedAvg(), shoal.LocalSGD(), engine, shoal.Stream(0))
        ...     training = shoal.Training(*setting, record_every=1)
        ...     _, report = training.round(training.start())
        ...     scores = update_scores([report.updates], OwnedRecords.of(federation), engine)
        ...
        >>> round(audit_updates(GradCosine(), scores).unused.auc, 2)
        0.95
    """
    found = attack.score(scores)
    wanted = None if group is None else scores.groups.index(group)
    pairs: list[tuple[NDArray[np.float64], NDArray[np.int64]]] = []
    by_client: dict[int, MembershipMetrics] = {}
    for i, row in enumerate(found):
        own = scores.client == i
        groups = np.unique(scores.group[own])
        if not own.any() or (wanted is not None and wanted not in groups):
            continue
        asked = np.isin(scores.group, groups) & ~np.isnan(row)
        kind = np.where(own, _MEMBER, np.where(scores.client == NOBODY, _UNUSED, _OTHERS))[asked]
        pairs.append((row[asked], kind))
        by_client[int(scores.clients[i])] = _against(_UNUSED, row[asked], kind, attack)
    values = np.concatenate([np.zeros(0), *(each for each, _ in pairs)])
    kinds = np.concatenate([np.zeros(0, dtype=np.int64), *(each for _, each in pairs)])
    unused, others = (_against(kind, values, kinds, attack) for kind in (_UNUSED, _OTHERS))
    return UpdateAudit(unused, others, by_client)


def _against(
    kind: int, values: NDArray[np.float64], kinds: NDArray[np.int64], attack: UpdateAttack
) -> MembershipMetrics:
    """Members against the non-members of one kind."""
    which = (kinds == _MEMBER) | (kinds == kind)
    return membership_metrics(values[which], kinds[which] == _MEMBER, threshold=attack.threshold)
