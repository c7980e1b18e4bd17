"""One attack's scores of the training and test examples of K models, as tables of records.

The simulator knows who was trained on what. For measurement alone: algorithms see none of it, unless the red team's
estimator is "audit". Non-members are weighted to the members' groups and labels, not drawn: a draw would add noise to a
headline figure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from shoal.attacks.membership_attack import FittedAttack, Query
from shoal.audit.predictions import ModelOutputs
from shoal.audit.records import RecordTable, matching_weights
from shoal.data.federation import Federation
from shoal.engine import Deployed, PersonalModels, State
from shoal.metrics.intervals import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class Membership:
    """The clients that trained each of S models.

    Args:
        trainers: (N, S) bool, the clients whose examples are members of each model.
        latest: (N,) int64, the model that each client trained last; -1: none, or too long ago to be its member.
    """

    trainers: Tensor
    latest: Tensor

    @staticmethod
    def of_clusters(state: State, within: int) -> "Membership":
        """Membership of the K clusters' models; members trained ``within`` so many rounds of the last training."""
        trainers = state.trainers(within)
        cluster = state.assignment.clamp(min=0)
        member = (state.assignment >= 0) & trainers[torch.arange(len(cluster)), cluster]
        return Membership(trainers, torch.where(member, state.assignment, -1))

    @staticmethod
    def of_deployed(state: State, deployed: Deployed, within: int) -> "Membership":
        """Membership of the models that clients use: the clusters', or personal ones.

        Of several models that a client trained last, as FedEM's clients train all, the latest is the one that it uses.
        """
        if not is_personal(deployed):
            members, number = Membership.of_clusters(state, within), torch.arange(len(state.assignment))
            if not state.trained.numel():
                return members
            used = state.trained[number, deployed.model]
            last = (used > 0) & (used == state.trained.amax(dim=1)) & members.trainers[number, deployed.model]
            return Membership(members.trainers, torch.where(last, deployed.model, members.latest))
        # Where nothing is sent, as in local training, no training is recorded, and who was there has trained. Who
        # fine-tunes has trained, also if it took part in no round.
        took_part = (state.trained > 0).any(dim=1) if bool(state.trained.any()) else state.assignment >= 0
        took_part = took_part | bool(deployed.fine_tuning)
        number = torch.arange(len(took_part))
        return Membership(torch.diag(took_part), torch.where(took_part, number, -1))


def is_personal(deployed: Deployed) -> bool:
    """True where clients have models of their own, not a cluster's of which one happens to be the only client."""
    single = torch.equal(deployed.model, torch.arange(len(deployed.models)))
    shared = torch.equal(deployed.model, deployed.assignment)
    return isinstance(deployed.models, PersonalModels) or (single and not shared)


@dataclass(frozen=True, eq=False)
class Margins:
    """Margins of one attack on one model, score - threshold: of the training examples (T_k,) that were scored, and of
    the test examples (M,).
    """

    training: Ints
    members: Floats
    non_members: Floats


def margins_of(outputs: ModelOutputs, attacks: Sequence[FittedAttack]) -> list[Margins]:
    """The margins of ``attacks``, one per model, on each of the K models with these ``outputs``."""
    margins = []
    for k, attack in enumerate(attacks):
        examples, reference = outputs.training[k], outputs.reference_members.get(k)
        query = Query.unseen(outputs.members[k], outputs.labels[examples], reference, outputs.loss)
        members = attack.score(query) if len(examples) else np.empty(0)
        query = Query.unseen(outputs.test[k], outputs.test_labels, outputs.reference_test.get(k), outputs.loss)
        non_members = np.asarray(attack.score(query) - attack.threshold, dtype=np.float64)
        margins.append(Margins(examples.numpy(), members - attack.threshold, non_members))
    return margins


@dataclass(frozen=True, eq=False)
class ModelScores:
    """One attack's margins of each model's members and non-members.

    Non-members are test examples, weighted to the members' mix of labels; in a regression to their mix of groups alone.

    Args:
        margins: of each of the K models, on the examples of all its trainers at least.
        members: who trained which of the models.
        federation: that was attacked.
        attack: the attack's name.
    """

    margins: Sequence[Margins]
    members: Membership
    federation: Federation
    attack: str = ""

    def of_model(self, k: int, *, population: bool = False) -> RecordTable:
        """Model k: training examples of the clients that trained it, against as many test examples.

        They have the members' mix of groups and labels; with ``population`` test examples of all groups, in the
        proportions of the groups among the clients. Members without test examples of their group and label are left
        out.
        """
        scored = self.margins[k]
        inside = self.members.trainers.numpy()[self._owner[scored.training], k]
        if population:
            mix = self.federation.group_fractions.numpy()
            inside[inside] = self._is_comparable(scored.training[inside], mix > 0)
            wanted = mix[:, None] * self._count(scored.training[inside]).sum(axis=0)
        else:
            inside &= self._test_counts.ravel()[self._stratum[scored.training]] > 0
            wanted = self._count(scored.training[inside])
        return self._table([(k, inside, wanted)])

    def of_group(self, g: int, mix: Floats | None = None) -> RecordTable:
        """The training examples of group g against test examples, each on the model that its client trained last.

        ``mix`` (G,) are the proportions of the groups among the test examples; None: of group g alone, which measures
        memorisation. With others, an attack that only recognises groups has an advantage too.
        """
        shares = np.eye(len(self.federation.groups))[g] if mix is None else mix
        group, latest, parts = self.federation.group.numpy(), self.members.latest.numpy(), []
        for k, scored in enumerate(self.margins):
            owner = self._owner[scored.training]
            inside = (group[owner] == g) & (latest[owner] == k)
            if inside.any():
                inside[inside] = self._is_comparable(scored.training[inside], shares > 0)
                parts.append((k, inside, shares[:, None] * self._count(scored.training[inside]).sum(axis=0)))
        return self._table(parts)

    def _table(self, parts: Sequence[tuple[int, Bools, Floats]]) -> RecordTable:
        """The members of some models at a mask (T_k,), then their non-members, by group and label as many as wanted."""
        members, non_members = [], []
        for k, inside, wanted in parts:
            scored, weight = self.margins[k], matching_weights(wanted.ravel(), self._test_stratum)
            examples, rows = scored.training[inside], np.flatnonzero(weight)
            # With many clients' models rows are many, so integers are short.
            of_model = partial(RecordTable.from_columns, model=np.int32(k), attack=self.attack)
            members.append(of_model(
                scored.members[inside], True, record=examples.astype(np.int32),
                client=self.federation.ids.numpy()[self._owner[examples]],
                group=(self._stratum[examples] // self._labels).astype(np.int32),
            ))  # fmt: skip
            non_members.append(of_model(
                scored.non_members[rows], False, record=rows.astype(np.int32), weight=weight[rows],
                group=(self._test_stratum[rows] // self._labels).astype(np.int32),
            ))  # fmt: skip
        return RecordTable.join([*members, *non_members])

    def _is_comparable(self, examples: Ints, groups: Bools) -> Bools:
        """Mask of the training examples that have a label of which all ``groups`` (G,) have test examples."""
        return np.all(self._test_counts[groups] > 0, axis=0)[self._stratum[examples] % self._labels]

    def _count(self, examples: Ints) -> Floats:
        """(G, labels) numbers of training examples by group and label."""
        counts = np.bincount(self._stratum[examples], minlength=self._test_counts.size)
        return counts.reshape(self._test_counts.shape).astype(np.float64)

    @property
    def _labels(self) -> int:
        return self.federation.classes or 1

    @cached_property
    def _owner(self) -> Ints:
        """(T,) the client that holds each training example."""
        return self.federation.clients.owners().numpy()

    @cached_property
    def _stratum(self) -> Ints:
        """(T,) a number of each training example's group and label."""
        shards = self.federation.clients
        return self._number(self.federation.group.numpy()[self._owner], shards.y[shards.indices.to(shards.y.device)])

    @cached_property
    def _test_stratum(self) -> Ints:
        """(M,) the same of each test example."""
        return self._number(self.federation.test.group.numpy(), self.federation.test.y)

    def _number(self, group: Ints, labels: Tensor) -> Ints:
        return group * self._labels + (0 if self.federation.classes is None else labels.cpu().numpy())

    @cached_property
    def _test_counts(self) -> Floats:
        """(G, labels) numbers of test examples by group and label."""
        shape = len(self.federation.groups), self._labels
        return np.bincount(self._test_stratum, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)
