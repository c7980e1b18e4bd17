"""How well a membership attack on clients' updates finds members, against two kinds of non-members.

A client's update says which labels and groups its examples have, and an attack would be right by that alone were its
non-members of another mix: with 30 examples of ten labels, how many the client has of a record's label has an AUC of
0.651 against records of all labels alike. So non-members are weighted to the mix of the client's members, for client i:

    weight of a non-member x = (members of i with x's group and label) / (non-members with x's group and label)

A score that knows no more of a record than its group and label then has an AUC of 0.5, whatever it knows of the client.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.attacks.updates.update_scores import NOBODY, UpdateAttack, UpdateScores
from shoal.metrics import MembershipMetrics, membership_metrics

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


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
        >>> from shoal.attacks import update_scores
        >>> from shoal.attacks import GradCosine, OwnedRecords
        >>> from shoal.audit import audit_updates
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

    A client's non-members have the mix of groups and labels of its members, by their weights; a member whose group and
    label no non-member has is left out, and ``members`` counts the others. In a regression groups alone must agree.
    A record that nobody trained on is asked of many clients, so intervals over all clients are somewhat too narrow.

    Args:
        attack: on the updates.
        scores: of recorded rounds.
        group: name of a group; None: all clients.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import update_scores
        >>> from shoal.attacks import GradCosine, OwnedRecords
        >>> from shoal.audit import audit_updates
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
    unused, others, by_client = list[_Asked](), list[_Asked](), dict[int, MembershipMetrics]()
    for i, row in enumerate(found):
        own, seen = scores.client == i, ~np.isnan(row)
        if not own.any() or (wanted is not None and wanted not in scores.group[own]):
            continue
        unused.append(_asked(row, scores, own & seen, (scores.client == NOBODY) & seen))
        others.append(_asked(row, scores, own & seen, (scores.client != NOBODY) & ~own & seen))
        by_client[int(scores.clients[i])] = _measured(unused[-1:], attack)
    return UpdateAudit(_measured(unused, attack), _measured(others, attack), by_client)


@dataclass(frozen=True, eq=False)
class _Asked:
    """The scores, membership and weights (m,) of the records that one client's update is asked about."""

    score: Floats
    member: Bools
    weight: Floats


def _asked(row: Floats, scores: UpdateScores, members: Bools, non_members: Bools) -> _Asked:
    """Members (M,) and non-members (M,) of one client, these weighted to the groups and labels of those."""
    kind = scores.group * (scores.label.max() + 1) + scores.label
    of_kind, against = (np.bincount(kind[which], minlength=kind.max() + 1) for which in (members, non_members))
    share = of_kind / np.maximum(against, 1)
    weight = np.where(members, against[kind] > 0, np.where(non_members, share[kind], 0.0))
    kept = weight > 0
    return _Asked(row[kept], members[kept], weight[kept])


def _measured(asked: Sequence[_Asked], attack: UpdateAttack) -> MembershipMetrics:
    """The metrics on the records of several clients together."""
    none = _Asked(np.zeros(0), np.zeros(0, dtype=bool), np.zeros(0))
    joined = [none, *asked]
    return membership_metrics(
        np.concatenate([each.score for each in joined]),
        np.concatenate([each.member for each in joined]),
        np.concatenate([each.weight for each in joined]),
        threshold=attack.threshold,
    )
