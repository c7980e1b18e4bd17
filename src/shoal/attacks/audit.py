"""The simulator's full knowledge: every member and non-member scored by the attack on its model.

For measuring. An algorithm sees none of it unless the red team's estimator is "audit" by name.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.attacks.membership import FittedAttack
from shoal.data.federation import Federation
from shoal.engine import Engine
from shoal.metrics import MembershipMetrics, membership_metrics

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """What the models say about members and about held-out examples.

    Args:
        members: (T, C), on each training example, the model that its client chose.
        labels: (T,) of the training examples.
        owner: (T,) the client that holds each.
        choice: (N,) each client's model; -1 for none, whose examples no model has seen.
        held_out: (K, M, C), every model on every test example.
    """

    members: Tensor
    labels: Tensor
    owner: Tensor
    assignment: Tensor
    held_out: Tensor


def evaluate_models(models: Tensor, assignment: Tensor, federation: Federation, engine: Engine) -> ModelOutputs:
    """Evaluate ``models`` (K, P) on the examples of the clients that chose them, and on the test set."""
    clients = federation.clients
    held_out = torch.stack([engine.outputs(row, federation.test.x).cpu() for row in models])
    members = torch.zeros(len(clients.indices), held_out.shape[-1])
    for k, row in enumerate(models):
        theirs = assignment[clients.owners()] == k
        if theirs.any():
            rows = clients.indices[theirs].to(clients.y.device)
            members[theirs] = engine.outputs_at(row, clients.x, rows).cpu()
    return ModelOutputs(
        members=members,
        labels=clients.y[clients.indices.to(clients.y.device)].cpu(),
        owner=clients.owners(),
        assignment=assignment,
        held_out=held_out,
    )


@dataclass(frozen=True, eq=False)
class MembershipAudit:
    """Margins (score - threshold, above 0 says member) of one attack on each model.

    Args:
        members: (T,) of the training examples, on their client's model; NaN for a client without one.
        outsiders: (K, M) of the test examples, on every model.
        owner: (T,) the client that holds each training example.
        choice: (N,) each client's model.
    """

    members: Floats
    outsiders: Floats
    owner: NDArray[np.int64]
    assignment: NDArray[np.int64]

    @staticmethod
    def of(observed: ModelOutputs, attacks: Sequence[FittedAttack], federation: Federation) -> "MembershipAudit":
        """Let ``attacks`` (one for each model) score everything that was observed."""
        members = np.full(len(observed.labels), np.nan)
        outsiders = np.empty(observed.held_out.shape[:2])
        test_labels = federation.test.y.cpu()
        for k, attack in enumerate(attacks):
            theirs = observed.assignment[observed.owner] == k
            if theirs.any():
                scores = attack.score(observed.members[theirs], observed.labels[theirs])
                members[theirs.numpy()] = scores - attack.threshold
            outsiders[k] = attack.score(observed.held_out[k], test_labels) - attack.threshold
        return MembershipAudit(members, outsiders, observed.owner.numpy(), observed.assignment.numpy())

    def of_cluster(self, k: int, federation: Federation) -> MembershipMetrics:
        """Model k: members of the clients that chose it, against test examples weighted to as many, with the same mix
        of groups. A group that the test set has nothing of is left out.
        """
        group = federation.group.numpy()[self.owner]
        inside = (self.assignment[self.owner] == k) & np.isin(group, federation.test.group.numpy())
        counts = np.bincount(group[inside], minlength=len(federation.groups))
        return self._of_cluster(k, inside, _weights(federation, counts.astype(float)))

    def of_cluster_in_population(self, k: int, federation: Federation) -> MembershipMetrics:
        """Model k: members of the clients that chose it, against test examples of all groups by share."""
        return self._of_cluster(
            k, self.assignment[self.owner] == k, _weights(federation, federation.group_fractions.numpy())
        )

    def _of_cluster(self, k: int, inside: NDArray[np.bool_], weight: Floats) -> MembershipMetrics:
        members, outsiders = self.members[inside], self.outsiders[k, weight > 0]
        scores = np.concatenate([members, outsiders])
        weights = np.concatenate([np.ones(len(members)), weight[weight > 0]])
        return membership_metrics(scores, np.arange(len(scores)) < len(members), weights, threshold=0.0)

    def of_group(self, g: int, federation: Federation, mix: Floats) -> MembershipMetrics:
        """The clients of group g: their training examples against test examples, each on the model its client chose.

        Args:
            g: whose training examples.
            federation: that was observed.
            mix: (G,) in what proportions the test examples are of each group. `only` that group's measure memory
                alone; others measure "which group are you in" along with "did you train".
        """
        scores, member, weight = self.group_scores(g, federation, mix)
        return membership_metrics(scores, member, weight, threshold=0.0)

    def group_scores(self, g: int, federation: Federation, mix: Floats) -> tuple[Floats, NDArray[np.bool_], Floats]:
        """Margins, whether of a member, and weights, behind `of_group`."""
        clients = (federation.group.numpy() == g) & (self.assignment >= 0)
        inside = clients[self.owner]
        of_example = _weights(federation, mix)
        scores, weights = [self.members[inside]], [np.ones(int(inside.sum()))]
        for k in np.unique(self.assignment[clients]):
            using = float((self.assignment[clients] == k).mean())
            counted = of_example > 0
            scores.append(self.outsiders[k, counted])
            weights.append(of_example[counted] * using)
        joined = np.concatenate(scores)
        return joined, np.arange(len(joined)) < len(scores[0]), np.concatenate(weights)


def one_group_mix(g: int, federation: Federation) -> Floats:
    """(G,) the mix of groups that is of group g alone."""
    return np.eye(len(federation.groups))[g]


def _weights(federation: Federation, shares: Floats) -> Floats:
    """(M,) weights that mix the test examples of the groups in the proportions ``shares`` (G,)."""
    group = federation.test.group.numpy()
    sizes = np.bincount(group, minlength=len(federation.groups))
    return (shares / np.maximum(1, sizes))[group]
