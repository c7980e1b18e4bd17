"""Model outputs and attack scores on training and test examples.

Only a simulator knows the members. Algorithms do not use them, except with the red team's estimator "audit". Test
examples serve as non-members, weighted to the members' groups and labels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.attacks.membership_attack import FittedAttack, Query, Records
from shoal.audit.record_table import RecordTable, matching_weights
from shoal.data.federation import Federation
from shoal.data.names import group_counts
from shoal.data.shards import Shards
from shoal.engine import DeployedModels, Engine, PersonalModels, State
from shoal.metrics import roc
from shoal.metrics.intervals import Bools, Floats, Ints
from shoal.models import ModelMetric
from shoal.models.model import Loss, cross_entropy

MAX_OUTPUTS = 2**24
"""With more outputs on training examples per model (64 MB), only members' outputs are stored."""


ROC_POINTS = 400
"""The number of points stored per ROC curve."""


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """Outputs of K models on training examples and on test examples.

    Args:
        training: per model, the indices of the T_k training examples with stored outputs, (T_k,) int64.
        members: per model, the outputs on the examples in ``training``, (T_k, C).
        evaluated: per model, the indices of the E_k training examples with a known metric, (E_k,) int64.
        values: per model, the metric (such as accuracy) on each example in ``evaluated``, (E_k,) float64.
        labels: the labels of all training examples, (T,), or (T, d) in a regression.
        owner: the client of each training example, (T,).
        test: the outputs of every model on every test example, (K, M, C).
        test_labels: the labels of the test examples, (M,).
        reference_members: the outputs of R reference models on the examples in ``training``, by model, (R, T_k, C).
        reference_test: the outputs of R reference models on the test examples, by model, (R, M, C).
    """

    training: tuple[Tensor, ...]
    members: tuple[Tensor, ...]
    evaluated: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    labels: Tensor
    owner: Tensor
    test: Tensor
    test_labels: Tensor
    reference_members: dict[int, Tensor]
    reference_test: dict[int, Tensor]
    loss: Loss = cross_entropy


def evaluate_models(
    models: Tensor | PersonalModels,
    clients: Tensor,
    federation: Federation,
    engine: Engine,
    records: Sequence[Records] = (),
    members: Tensor | None = None,
) -> ModelOutputs:
    """Evaluate each model on the training examples of some clients, and on the test set.

    If a model has more than `MAX_OUTPUTS` outputs, only the outputs on members' examples are stored. The model's metric
    is stored for all evaluated examples.

    Args:
        clients: the clients whose examples each model is evaluated on, (N, K) bool.
        records: the records that the attacks were fitted on, per model; see `with_references`.
        members: the clients whose examples are members of each model, (N, K) bool; by default equal to ``clients``.
    """
    shards, test, owner = federation.clients, federation.test, federation.clients.owners()
    labels = shards.y[shards.indices.to(shards.y.device)].cpu()
    metric = engine.model.metric_for(federation.classes)
    evaluated = [torch.nonzero(clients[owner, k]).flatten() for k in range(len(models))]
    kept, of_kept, of_test, values = [], [], torch.empty(0), []
    # Each access may read a client's model from a disk or train it, so access it only once.
    for k, model in enumerate(models):
        outputs = engine.outputs(model, test.x).cpu()
        if k == 0:
            kept = _masks_of_stored(evaluated, owner, members, outputs[0].numel())
            sizes = [int(mask.sum()) for mask in kept]
            of_kept = outputs.new_empty(sum(sizes), *outputs.shape[1:]).split(sizes)
            of_test = outputs.new_empty(len(models), *outputs.shape)
        # Copied to where there is room for all: outputs that stay would keep apart the memory that each evaluation
        # takes and frees, several megabytes a model.
        of_test[k] = outputs
        begin, of_examples = 0, torch.empty(len(evaluated[k]), dtype=torch.float64)
        for where, part in engine.outputs_in_parts(model, shards.x, _rows(shards, evaluated[k])):
            on_cpu = part.cpu()
            of_examples[where] = metric(on_cpu, labels[evaluated[k][where]]).double()
            end = begin + int(kept[k][where].sum())
            of_kept[k][begin:end] = on_cpu[kept[k][where]]
            begin = end
        values.append(of_examples)
    outputs = ModelOutputs(
        training=tuple(examples[mask] for examples, mask in zip(evaluated, kept, strict=True)),
        members=tuple(of_kept),
        evaluated=tuple(evaluated),
        values=tuple(values),
        labels=labels,
        owner=owner,
        test=of_test,
        test_labels=test.y.cpu(),
        reference_members={},
        reference_test={},
        loss=engine.model.loss,
    )
    return with_references(outputs, federation, engine, records)


def _masks_of_stored(evaluated: Sequence[Tensor], owner: Tensor, members: Tensor | None, numbers: int) -> list[Tensor]:
    """Return the mask (E_k,) of each model's examples with stored outputs; an example has ``numbers`` outputs."""
    if members is None:
        return [torch.ones_like(rows, dtype=torch.bool) for rows in evaluated]
    return [
        members[owner[rows], k] if len(rows) * numbers > MAX_OUTPUTS else torch.ones_like(rows, dtype=torch.bool)
        for k, rows in enumerate(evaluated)
    ]


def with_references(
    outputs: ModelOutputs, federation: Federation, engine: Engine, records: Sequence[Records]
) -> ModelOutputs:
    """Add the outputs of reference models on the same examples to ``outputs``.

    Args:
        records: the fitted attack's records and reference models per model, or an empty list without reference models.
    """
    test, members, on_tests = federation.test, {}, {}
    everything = torch.arange(len(test), device=test.y.device)
    # Clients' own models share the reference models of their cluster.
    on_test: dict[int, Tensor] = {}
    for k, shadows in enumerate(records):
        reference = shadows.reference
        if reference is not None:
            rows = _rows(federation.clients, outputs.training[k])
            members[k] = reference.evaluate(federation.clients.x, rows, engine)
            if id(reference) not in on_test:
                on_test[id(reference)] = reference.evaluate(test.x, everything, engine)
            on_tests[k] = on_test[id(reference)]
    return replace(outputs, reference_members=members, reference_test=on_tests)


def _rows(shards: Shards, examples: Tensor) -> Tensor:
    """Return the rows of ``examples`` (t,) in the data."""
    return shards.indices[examples].to(shards.y.device)


@dataclass(frozen=True, eq=False)
class Predictions:
    """The metrics of S deployed models on test and training examples, and the predicted classes.

    Args:
        test: each model's mean metric on each group's test examples, (S, G) float64.
        training: the mean metric of each client's model on the client's training examples, (N,) float64, or 0 if the
            client's model is not among the S models.
        training_by_group: the mean metric of each client's model on the client's training examples of each group,
            (N, G) float64, or 0 if the client has no example of the group.
        predicted: each model's predicted class of each test example, (S, M), or ``None`` in a regression.
        outputs: each model's outputs on the test examples, (S, M, C), or ``None`` if the federation has no schedule.
    """

    test: Floats
    training: Floats
    training_by_group: Floats
    predicted: Tensor | None
    outputs: Tensor | None

    @staticmethod
    def join(parts: "Sequence[Predictions]") -> "Predictions":
        """Join the predictions of disjoint sets of models."""
        return Predictions(
            test=np.concatenate([part.test for part in parts]),
            training=np.sum([part.training for part in parts], axis=0),
            training_by_group=np.sum([part.training_by_group for part in parts], axis=0),
            predicted=_concatenate([part.predicted for part in parts]),
            outputs=_concatenate([part.outputs for part in parts]),
        )


def _concatenate(parts: Sequence[Tensor | None]) -> Tensor | None:
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors) if tensors else None


def predictions_of(
    outputs: ModelOutputs, first: int, deployed: DeployedModels, federation: Federation, metric: ModelMetric
) -> Predictions:
    """Compute predictions from the outputs of consecutive deployed models, numbered from ``first``."""
    values = torch.stack([metric(row, outputs.test_labels).double() for row in outputs.test])
    by_group = [values[:, federation.test.group == g].mean(dim=1) for g in range(len(federation.groups))]
    groups, group = len(federation.groups), federation.groups_of("clients")
    counts = group_counts(federation.clients.owners(), group, (len(federation), groups))
    total = torch.zeros(counts.numel(), dtype=torch.float64)
    for s, (examples, training) in enumerate(zip(outputs.evaluated, outputs.values, strict=True), first):
        owner = outputs.owner[examples]
        # Other models' metrics may be infinite, so they are replaced by 0, not multiplied by 0.
        total.index_add_(0, owner * groups + group[examples], torch.where(deployed.model[owner] == s, training, 0.0))
    total, predicted = total.reshape(counts.shape), None
    if federation.classes is not None:
        predicted = outputs.test.argmax(dim=2).to(torch.uint8 if federation.classes <= 256 else torch.int32)
    return Predictions(
        test=torch.stack(by_group, dim=1).numpy(),
        training=(total.sum(dim=1) / federation.clients.sizes).numpy(),
        training_by_group=(total / counts.clamp(min=1)).numpy(),
        predicted=predicted,
        outputs=outputs.test if federation.schedule is not None else None,
    )


@dataclass(frozen=True, eq=False)
class Membership:
    """The clients that trained each of S models.

    Args:
        trainers: the clients whose examples are members of each model, (N, S) bool.
        latest: the model that each client trained last, (N,) int64, or -1 for a client that is not a member of any
            model.
    """

    trainers: Tensor
    latest: Tensor

    @staticmethod
    def of_clusters(state: State, within: int) -> "Membership":
        """Return the membership of the K clusters' models.

        A client is a member of a model if it trained the model at most ``within`` rounds before the model's last
        training.
        """
        trainers = state.trainers(within)
        cluster = state.assignment.clamp(min=0)
        member = (state.assignment >= 0) & trainers[torch.arange(len(cluster)), cluster]
        return Membership(trainers, torch.where(member, state.assignment, -1))

    @staticmethod
    def of_deployed(state: State, deployed: DeployedModels, within: int) -> "Membership":
        """Return the membership of the deployed models.

        If a client trained several models in its last round, as in FedEM, `latest` is the model that the client uses.
        """
        if not is_personal(deployed):
            members, number = Membership.of_clusters(state, within), torch.arange(len(state.assignment))
            if not state.trained.numel():
                return members
            used = state.trained[number, deployed.model]
            last = (used > 0) & (used == state.trained.amax(dim=1)) & members.trainers[number, deployed.model]
            return Membership(members.trainers, torch.where(last, deployed.model, members.latest))
        # Local training sends no updates and records no training, so every client that took part has trained.
        # With fine-tuning, every client has trained.
        took_part = (state.trained > 0).any(dim=1) if bool(state.trained.any()) else state.assignment >= 0
        took_part = took_part | bool(deployed.fine_tuning)
        number = torch.arange(len(took_part))
        return Membership(torch.diag(took_part), torch.where(took_part, number, -1))


def is_personal(deployed: DeployedModels) -> bool:
    """Return whether clients have personal models rather than cluster models."""
    single = torch.equal(deployed.model, torch.arange(len(deployed.models)))
    shared = torch.equal(deployed.model, deployed.assignment)
    return isinstance(deployed.models, PersonalModels) or (single and not shared)


@dataclass(frozen=True, eq=False)
class Margins:
    """The margins of one attack on one model; a margin is the score minus the threshold.

    Args:
        training: the indices of the scored training examples, (T_k,).
        members: the margins of the scored training examples, (T_k,).
        non_members: the margins of the test examples, (M,).
    """

    training: Ints
    members: Floats
    non_members: Floats


def margins_of(outputs: ModelOutputs, attacks: Sequence[FittedAttack]) -> list[Margins]:
    """Compute the margins of ``attacks[k]`` on model k, for each of the K models."""
    margins = []
    for k, attack in enumerate(attacks):
        examples, reference = outputs.training[k], outputs.reference_members.get(k)
        query = Query.offline(outputs.members[k], outputs.labels[examples], reference, outputs.loss)
        members = attack.score(query) if len(examples) else np.empty(0)
        query = Query.offline(outputs.test[k], outputs.test_labels, outputs.reference_test.get(k), outputs.loss)
        non_members = np.asarray(attack.score(query) - attack.threshold, dtype=np.float64)
        margins.append(Margins(examples.numpy(), members - attack.threshold, non_members))
    return margins


@dataclass(frozen=True, eq=False)
class ModelScores:
    """One attack's margins for the members and non-members of each model.

    Non-members are test examples, weighted to the members' groups and labels, or only to the groups in a regression.

    Args:
        margins: the margins for each of the K models; all members have a margin.
    """

    margins: Sequence[Margins]
    members: Membership
    federation: Federation
    attack: str = ""

    def of_model(self, k: int, *, population: bool = False) -> RecordTable:
        """Return the members of model k, and test examples with an equal total weight.

        Test examples are weighted to the members' groups and labels; ``population`` uses all clients' mix of groups.
        Members without a comparable test example are left out.
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
        """Return the training examples of group g, and test examples with an equal total weight.

        Each example is scored on the model that its client trained last.

        Args:
            mix: the proportions of the groups among the non-members, (G,), or ``None`` for group g only.
        """
        shares = np.eye(len(self.federation.groups))[g] if mix is None else mix
        latest, parts = self.members.latest.numpy(), []
        for k, scored in enumerate(self.margins):
            owner = self._owner[scored.training]
            inside = (self._stratum[scored.training] // self._labels == g) & (latest[owner] == k)
            if inside.any():
                inside[inside] = self._is_comparable(scored.training[inside], shares > 0)
                parts.append((k, inside, shares[:, None] * self._count(scored.training[inside]).sum(axis=0)))
        return self._table(parts)

    def _table(self, parts: Sequence[tuple[int, Bools, Floats]]) -> RecordTable:
        """Return some models' masked members (T_k,), and non-members weighted to the wanted groups and labels."""
        members, non_members = [], []
        for k, inside, wanted in parts:
            scored, weight = self.margins[k], matching_weights(wanted.ravel(), self._test_stratum)
            examples, rows = scored.training[inside], np.flatnonzero(weight)
            # Short integers, because many personal models have many rows.
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
        """Return the mask of the examples whose label occurs in the test examples of all ``groups`` (G,)."""
        return np.all(self._test_counts[groups] > 0, axis=0)[self._stratum[examples] % self._labels]

    def _count(self, examples: Ints) -> Floats:
        """Count training examples by group and label, (G, labels)."""
        counts = np.bincount(self._stratum[examples], minlength=self._test_counts.size)
        return counts.reshape(self._test_counts.shape).astype(np.float64)

    @property
    def _labels(self) -> int:
        return self.federation.classes or 1

    @cached_property
    def _owner(self) -> Ints:
        """The client that holds each training example, (T,)."""
        return self.federation.clients.owners().numpy()

    @cached_property
    def _stratum(self) -> Ints:
        """The number of each training example's pair (group, label), (T,)."""
        shards = self.federation.clients
        labels = shards.y[shards.indices.to(shards.y.device)]
        return self._number(self.federation.groups_of("clients").numpy(), labels)

    @cached_property
    def _test_stratum(self) -> Ints:
        """The number of each test example's pair (group, label), (M,)."""
        return self._number(self.federation.test.group.numpy(), self.federation.test.y)

    def _number(self, group: Ints, labels: Tensor) -> Ints:
        return group * self._labels + (0 if self.federation.classes is None else labels.cpu().numpy())

    @cached_property
    def _test_counts(self) -> Floats:
        """The number of test examples by group and label, (G, labels)."""
        shape = len(self.federation.groups), self._labels
        return np.bincount(self._test_stratum, minlength=shape[0] * shape[1]).reshape(shape).astype(np.float64)


def mixes_of_non_members(g: int, federation: Federation) -> Mapping[str, Floats]:
    """Return the groups' proportions (G,) in each choice of non-members for attacks on group g, by name."""
    return {"group": np.eye(len(federation.groups))[g], "population": federation.group_fractions.numpy()}


def roc_curves(scores: ModelScores) -> pd.DataFrame:
    """Return the rows of `roc.csv`, with one ROC curve per group with clients and per mix of non-members."""
    curves = [
        _curve(scores.of_group(g, mix), scores.federation.groups[g], kind)
        for g in scores.federation.groups_with_clients
        for kind, mix in mixes_of_non_members(g, scores.federation).items()
    ]
    return pd.concat([curve for curve in curves if len(curve)] or curves[:1], ignore_index=True)


def _curve(records: RecordTable, group: str, non_members: str) -> pd.DataFrame:
    if records.member.all() or not records.member.any():
        return pd.DataFrame({"group": [], "non_members": [], "fpr": [], "tpr": []})
    fpr, tpr = roc(records.score, records.member, records.weight)
    if len(fpr) > ROC_POINTS:
        # Evenly spaced on the figure's logarithmic axis.
        rates = np.concatenate([[0.0], np.geomspace(1e-5, 1.0, ROC_POINTS - 1)])
        keep = np.unique(np.searchsorted(fpr, rates, side="right") - 1)
        fpr, tpr = fpr[keep], tpr[keep]
    return pd.DataFrame({"group": group, "non_members": non_members, "fpr": fpr, "tpr": tpr})
