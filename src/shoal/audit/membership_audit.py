"""Attack scores of every member and non-member, from the simulator's full knowledge of who was trained on what.

For measurement. The algorithms see none of it unless the red team's estimator is "audit".
Non-members are weighted to the members' groups and labels, not drawn: a draw would add noise to a headline figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from shoal.attacks.membership import FittedAttack, Query
from shoal.audit.model_outputs import ModelOutputs
from shoal.data.federation import Federation
from shoal.metrics import MembershipMetrics, membership_metrics

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Margins:
    """Margins of one attack on one model: score - threshold, positive where the attack says member.

    Args:
        training: (T_k,) the training examples that were scored.
        members: (T_k,) the margins of these.
        non_members: (M,) the margins of the test examples.
    """

    training: NDArray[np.int64]
    members: Floats
    non_members: Floats

    @staticmethod
    def of(outputs: ModelOutputs, attacks: Sequence[FittedAttack]) -> "list[Margins]":
        """Of each of the K models whose ``outputs`` are given, by ``attacks``, one per model."""
        found = []
        for k, attack in enumerate(attacks):
            examples, reference = outputs.training[k], outputs.reference_members.get(k)
            query = Query.unseen(outputs.members[k], outputs.labels[examples], reference, outputs.loss)
            members = attack.score(query) if len(examples) else np.empty(0)
            query = Query.unseen(outputs.test[k], outputs.test_labels, outputs.reference_test.get(k), outputs.loss)
            non_members = np.asarray(attack.score(query) - attack.threshold, dtype=np.float64)
            found.append(Margins(examples.numpy(), members - attack.threshold, non_members))
        return found


@dataclass(frozen=True, eq=False)
class MembershipAudit:
    """What one attack says of each model's members and non-members.

    Non-members are test examples, weighted so that they have the members' mix of labels: under label skew an attack
    would otherwise be credited with recognising labels. In a regression they have the members' mix of groups alone.

    Args:
        margins: of each of the K models.
        owner: (T,) the client that holds each training example.
        label: (T,) the class of each training example; 0 in a regression.
        trainers: (N, K) bool, the clients whose examples are members of each model.
        latest: (N,) the model that each client trained last; -1: none.
        federation: that was audited.

    Example:
        >>> import torch, shoal
        >>> from shoal.attacks import Records
        >>> from shoal.audit import MembershipAudit, evaluate_models
        >>> own = (torch.eye(4), [0, 1, 0, 1])
        >>> federation = shoal.Federation.from_tensors([own, own], test=(-torch.eye(4), [0, 1, 0, 1]))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=4, classes=2))
        >>> everybody = torch.ones(2, 1, dtype=torch.bool)
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.FedAvg(), shoal.LocalSGD(steps=20), engine, shoal.Stream(0))
        ...     state, _ = training.round(training.start())
        ...     outputs = evaluate_models(state.models, everybody, federation, engine)
        ...
        >>> fitted = shoal.Gap().fit(Records.none(), shoal.Stream(0))
        >>> audit = MembershipAudit.of(outputs, [fitted], everybody, torch.zeros(2, dtype=torch.int64), federation)
        >>> audit.of_cluster(0).accuracy, audit.of_cluster(0).members
        (1.0, 8)
    """

    margins: Sequence[Margins]
    owner: NDArray[np.int64]
    label: NDArray[np.int64]
    trainers: Bools
    latest: NDArray[np.int64]
    federation: Federation

    @staticmethod
    def of(
        outputs: ModelOutputs,
        attacks: Sequence[FittedAttack],
        trainers: Tensor,
        latest: Tensor,
        federation: Federation,
    ) -> "MembershipAudit":
        """Score all of ``outputs``, which are of all ``trainers`` at least, by ``attacks``, one per model."""
        return MembershipAudit.of_margins(Margins.of(outputs, attacks), trainers, latest, federation)

    @staticmethod
    def of_margins(
        margins: Sequence[Margins], trainers: Tensor, latest: Tensor, federation: Federation
    ) -> "MembershipAudit":
        """With the ``margins`` of all K models, which are on the examples of all ``trainers`` at least."""
        shards = federation.clients
        labels = shards.y[shards.indices.to(shards.y.device)].cpu()
        return MembershipAudit(
            margins=tuple(margins),
            owner=shards.owners().numpy(),
            label=_class_of(labels, federation),
            trainers=trainers.numpy(),
            latest=latest.numpy(),
            federation=federation,
        )

    def of_cluster(self, k: int, *, population: bool = False) -> MembershipMetrics:
        """Model k: training examples of the clients that trained it, against as many test examples.

        Args:
            k: the model.
            population: against test examples of all groups, in the proportions of the groups among the clients;
                otherwise with the members' mix of groups. Members without test examples of their group and label are
                left out.
        """
        of_model = self.margins[k]
        trained = self.trainers[self.owner[of_model.training], k]
        examples, margins = of_model.training[trained], of_model.members[trained]
        if population:
            mix = self.federation.group_fractions.numpy()
            inside = self._comparable(examples, mix > 0)
            counts = mix[:, None] * self._counts(examples[inside]).sum(axis=0)
        else:
            inside = self._test_sizes[self._group(examples), self.label[examples]] > 0
            counts = self._counts(examples[inside])
        return _metrics([margins[inside]], [of_model.non_members], [self._weights(counts)])

    def of_group(self, g: int, mix: Floats) -> MembershipMetrics:
        """The clients of group g: their training examples against test examples, each on the model its client trained
        last.

        Args:
            g: whose training examples.
            mix: (G,) the proportions of the groups among the test examples. `one_group_mix` of g measures memorisation
                alone; with others, an attack that only recognises groups has an advantage too.
        """
        members, non_members, weights = self._of_group(g, mix)
        return _metrics(members, non_members, weights)

    def group_scores(self, g: int, mix: Floats) -> tuple[Floats, Bools, Floats]:
        """The margins, their membership and their weights from which `of_group` computes its metrics."""
        return _joined(*self._of_group(g, mix))

    def _of_group(self, g: int, mix: Floats) -> tuple[list[Floats], list[Floats], list[Floats]]:
        """Members' margins, non-members' margins and weights, by model.

        A model's non-members weigh as much as its members.
        """
        group = self.federation.group.numpy()
        members, non_members, weights = [], [], []
        for k, of_model in enumerate(self.margins):
            examples = of_model.training
            own = (group[self.owner[examples]] == g) & (self.latest[self.owner[examples]] == k)
            if not own.any():
                continue
            own[own] = self._comparable(examples[own], mix > 0)
            members.append(of_model.members[own])
            non_members.append(of_model.non_members)
            weights.append(self._weights(mix[:, None] * self._counts(examples[own]).sum(axis=0)))
        return members, non_members, weights

    def _group(self, examples: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.federation.group.numpy()[self.owner[examples]]

    def _comparable(self, examples: NDArray[np.int64], groups: Bools) -> Bools:
        """Whether each of some training examples has a label of which all ``groups`` (G,) have test examples."""
        return np.all(self._test_sizes[groups] > 0, axis=0)[self.label[examples]]

    def _counts(self, examples: NDArray[np.int64]) -> Floats:
        """(G, classes) how many of some training examples are of each group and label."""
        counts = np.zeros((len(self.federation.groups), self.federation.classes or 1))
        np.add.at(counts, (self._group(examples), self.label[examples]), 1)
        return counts

    @cached_property
    def _test_sizes(self) -> Floats:
        """(G, classes) how many test examples are of each group and label."""
        sizes = np.zeros((len(self.federation.groups), self.federation.classes or 1))
        np.add.at(sizes, self._test_strata, 1)
        return sizes

    @cached_property
    def _test_strata(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The group (M,) and the class (M,) of each test example."""
        test = self.federation.test
        return test.group.numpy(), _class_of(test.y.cpu(), self.federation)

    def _weights(self, counts: Floats) -> Floats:
        """Weights (M,) that give the test examples of each group and label the totals ``counts`` (G, classes)."""
        return (counts / np.maximum(1, self._test_sizes))[self._test_strata]


def _class_of(labels: Tensor, federation: Federation) -> NDArray[np.int64]:
    """The class (M,) of each of M labels; without classes 0, so that examples are told apart by their groups alone."""
    return np.zeros(len(labels), dtype=np.int64) if federation.classes is None else labels.numpy()


def _joined(members: list[Floats], non_members: list[Floats], weights: list[Floats]) -> tuple[Floats, Bools, Floats]:
    """Margins, membership and weights of members, which count 1 each, and of non-members with a weight."""
    counted = [weight > 0 for weight in weights]
    inside = np.concatenate([np.empty(0), *members])
    outside = [margins[which] for margins, which in zip(non_members, counted, strict=True)]
    scores = np.concatenate([inside, *outside])
    joined = [weight[which] for weight, which in zip(weights, counted, strict=True)]
    return scores, np.arange(len(scores)) < len(inside), np.concatenate([np.ones(len(inside)), *joined])


def _metrics(members: list[Floats], non_members: list[Floats], weights: list[Floats]) -> MembershipMetrics:
    scores, member, weight = _joined(members, non_members, weights)
    return membership_metrics(scores, member, weight, threshold=0.0)


def one_group_mix(g: int, federation: Federation) -> Floats:
    """The mix (G,) of group g alone.

    Example:
        >>> import shoal
        >>> from shoal.audit import one_group_mix
        >>> own = ([[0.0]], [0])
        >>> test = shoal.Examples([[0.0], [0.0]], [0, 0], ["north", "south"])
        >>> federation = shoal.Federation.from_tensors([own, own], test=test, groups=["north", "south"], classes=2)
        >>> one_group_mix(1, federation)
        array([0., 1.])
    """
    return np.eye(len(federation.groups))[g]
