"""Attack scores of every member and non-member, from the simulator's full knowledge of who was trained on what.

For measurement. The algorithms see none of it unless the red team's estimator is "audit".
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.attacks.membership import FittedAttack, Query, Records
from shoal.data.federation import Federation
from shoal.engine import Engine
from shoal.metrics import MembershipMetrics, membership_metrics

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """The models' outputs on training examples and on test examples.

    Args:
        members: (T, C), on each training example, of the model that its client chose.
        labels: (T,) of the training examples.
        owner: (T,) the client that holds each training example.
        assignment: (N,) each client's model; -1: none.
        test: (K, M, C), of every model on every test example.
        test_labels: (M,).
        reference_members: of each model k with reference models, their outputs (R, T_k, C) on the training examples of
            the clients that chose k.
        reference_test: of each model k with reference models, their outputs (R, M, C) on the test examples.
    """

    members: Tensor
    labels: Tensor
    owner: Tensor
    assignment: Tensor
    test: Tensor
    test_labels: Tensor
    reference_members: dict[int, Tensor]
    reference_test: dict[int, Tensor]


def evaluate_models(
    models: Tensor, assignment: Tensor, federation: Federation, engine: Engine, records: Sequence[Records] = ()
) -> ModelOutputs:
    """Evaluate each model on the training examples of the clients that chose it, and on the test set.

    Args:
        models: (K, P).
        assignment: (N,) each client's model; -1: none.
        records: that the attacks on the K models were fitted on; their reference models are evaluated on the same
            examples.
    """
    clients, test = federation.clients, federation.test
    of_test = torch.stack([engine.outputs(model, test.x).cpu() for model in models])
    members = torch.zeros(len(clients.indices), of_test.shape[-1])
    reference_members: dict[int, Tensor] = {}
    reference_test: dict[int, Tensor] = {}
    for k, model in enumerate(models):
        reference = records[k].reference if records else None
        chosen = assignment[clients.owners()] == k
        if chosen.any():
            rows = clients.indices[chosen].to(clients.y.device)
            members[chosen] = engine.outputs_at(model, clients.x, rows).cpu()
            if reference is not None:
                reference_members[k] = reference.evaluate(clients.x, rows, engine)
        if reference is not None:
            reference_test[k] = reference.evaluate(test.x, torch.arange(len(test), device=test.y.device), engine)
    return ModelOutputs(
        members=members,
        labels=clients.y[clients.indices.to(clients.y.device)].cpu(),
        owner=clients.owners(),
        assignment=assignment,
        test=of_test,
        test_labels=test.y.cpu(),
        reference_members=reference_members,
        reference_test=reference_test,
    )


@dataclass(frozen=True, eq=False)
class MembershipAudit:
    """Margins of one attack on each model: score - threshold, positive where the attack says member.

    Args:
        members: (T,) of the training examples, on the model their client chose; NaN for a client without a model.
        non_members: (K, M) of the test examples, on every model.
        owner: (T,) the client that holds each training example.
        assignment: (N,) each client's model; -1: none.
    """

    members: Floats
    non_members: Floats
    owner: NDArray[np.int64]
    assignment: NDArray[np.int64]

    @staticmethod
    def of(outputs: ModelOutputs, attacks: Sequence[FittedAttack]) -> "MembershipAudit":
        """Score all of ``outputs`` by ``attacks``, one per model."""
        members = np.full(len(outputs.labels), np.nan)
        non_members = np.empty(outputs.test.shape[:2])
        for k, attack in enumerate(attacks):
            chosen = outputs.assignment[outputs.owner] == k
            if chosen.any():
                reference = outputs.reference_members.get(k)
                query = Query.unseen(outputs.members[chosen], outputs.labels[chosen], reference)
                members[chosen.numpy()] = attack.score(query) - attack.threshold
            query = Query.unseen(outputs.test[k], outputs.test_labels, outputs.reference_test.get(k))
            non_members[k] = attack.score(query) - attack.threshold
        return MembershipAudit(members, non_members, outputs.owner.numpy(), outputs.assignment.numpy())

    def of_cluster(self, k: int, federation: Federation, *, population: bool = False) -> MembershipMetrics:
        """Model k: training examples of the clients that chose it, against test examples weighted to as many.

        Args:
            k: the model.
            population: against test examples of all groups, in the proportions of the groups among the clients;
                otherwise with the same mix of groups, where a group without test examples is left out.
        """
        inside = self.assignment[self.owner] == k
        if population:
            weight = _weights(federation, federation.group_fractions.numpy())
        else:
            group = federation.group.numpy()[self.owner]
            inside &= np.isin(group, federation.test.group.numpy())
            weight = _weights(federation, np.bincount(group[inside], minlength=len(federation.groups)).astype(float))
        members, non_members = self.members[inside], self.non_members[k, weight > 0]
        scores = np.concatenate([members, non_members])
        weights = np.concatenate([np.ones(len(members)), weight[weight > 0]])
        return membership_metrics(scores, np.arange(len(scores)) < len(members), weights, threshold=0.0)

    def of_group(self, g: int, federation: Federation, mix: Floats) -> MembershipMetrics:
        """The clients of group g: their training examples against test examples, each on the model its client chose.

        Args:
            g: whose training examples.
            mix: (G,) the proportions of the groups among the test examples. `one_group_mix` of g measures memorisation
                alone; with others, an attack that only recognises groups has an advantage too.
        """
        return membership_metrics(*self.group_scores(g, federation, mix), threshold=0.0)

    def group_scores(self, g: int, federation: Federation, mix: Floats) -> tuple[Floats, NDArray[np.bool_], Floats]:
        """The margins, their membership and their weights from which `of_group` computes its metrics."""
        clients = (federation.group.numpy() == g) & (self.assignment >= 0)
        inside = clients[self.owner]
        of_example = _weights(federation, mix)
        counted = of_example > 0
        scores, weights = [self.members[inside]], [np.ones(int(inside.sum()))]
        for k in np.unique(self.assignment[clients]):
            fraction = float((self.assignment[clients] == k).mean())
            scores.append(self.non_members[k, counted])
            weights.append(of_example[counted] * fraction)
        joined = np.concatenate(scores)
        return joined, np.arange(len(joined)) < len(scores[0]), np.concatenate(weights)


def one_group_mix(g: int, federation: Federation) -> Floats:
    """The mix (G,) of group g alone."""
    return np.eye(len(federation.groups))[g]


def _weights(federation: Federation, fractions: Floats) -> Floats:
    """Weights (M,) that give the groups' test examples the total weights ``fractions`` (G,)."""
    group = federation.test.group.numpy()
    sizes = np.bincount(group, minlength=len(federation.groups))
    return (fractions / np.maximum(1, sizes))[group]
