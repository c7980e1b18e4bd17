"""The outputs of models on training and on test examples, and the predictions that a run keeps.

Attacks are measured on the outputs, which are in memory for some models at a time; metrics on `Predictions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from shoal.attacks.membership_attack import Records
from shoal.data.federation import Federation
from shoal.data.shards import Shards
from shoal.engine import Deployed, Engine, PersonalModels
from shoal.metrics.intervals import Floats
from shoal.models import Metric
from shoal.models.model import Loss, cross_entropy

MAX_OUTPUTS = 2**24
"""Numbers that are kept of what a model gives for training examples (64 MB) before those of members alone are."""


@dataclass(frozen=True, eq=False)
class ModelOutputs:
    """Outputs of K models on training examples and on test examples.

    Args:
        training: of each model, (T_k,) int64 the training examples of which its outputs are kept.
        members: of each model, its outputs (T_k, C) on these.
        evaluated: of each model, (E_k,) int64 the training examples that it was evaluated on.
        values: of each model, its metric (E_k,) float64 on these.
        labels, owner: (T,) of all training examples: labels (of a regression (T, d)) and clients.
        test, test_labels: (K, M, C) outputs of every model on every test example, and their labels (M,).
        reference_members, reference_test: outputs (R, T_k, C) and (R, M, C) of reference models, by model.
        loss: with which the models were trained.
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

    Where the outputs of a model on these examples are more numbers than fit in memory well (`MAX_OUTPUTS`), those on
    examples of its members alone are kept, and of the others what the model's metric says of them.

    Args:
        models: (K, P).
        clients: (N, K) bool, on whose examples each model is evaluated.
        records: that the attacks on the K models were fitted on; see `with_references`.
        members: (N, K) bool, the ``clients`` whose examples are members of each model; None: all of them.
    """
    shards, test, owner = federation.clients, federation.test, federation.clients.owners()
    labels = shards.y[shards.indices.to(shards.y.device)].cpu()
    metric = engine.model.metric_for(federation.classes)
    evaluated = [torch.nonzero(clients[owner, k]).flatten() for k in range(len(models))]
    kept, of_kept, of_test, values = [], [], torch.empty(0), []
    # A client's model may be read from a disk, or trained, whenever it is asked for: once each.
    for k, model in enumerate(models):
        outputs = engine.outputs(model, test.x).cpu()
        if k == 0:
            kept = _kept(evaluated, owner, members, outputs[0].numel())
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


def _kept(evaluated: Sequence[Tensor], owner: Tensor, members: Tensor | None, numbers: int) -> list[Tensor]:
    """(E_k,) bool of each model, the examples of which its outputs are kept, which are so many ``numbers`` each."""
    if members is None:
        return [torch.ones_like(rows, dtype=torch.bool) for rows in evaluated]
    return [
        members[owner[rows], k] if len(rows) * numbers > MAX_OUTPUTS else torch.ones_like(rows, dtype=torch.bool)
        for k, rows in enumerate(evaluated)
    ]


def with_references(
    outputs: ModelOutputs, federation: Federation, engine: Engine, records: Sequence[Records]
) -> ModelOutputs:
    """``outputs`` of K models with those of the reference models in ``records``, one for each, on the same examples."""
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
    """Rows of the training ``examples`` (t,) in the data."""
    return shards.indices[examples].to(shards.y.device)


@dataclass(frozen=True, eq=False)
class Predictions:
    """Metrics and classes of S deployed models on the test examples and on their clients' training examples.

    Outputs are kept only where somebody asks for them: for N clients with personal models they are N M C numbers.

    Args:
        test: (S, G) float64, the mean of the metric of each model on each group's M test examples.
        training: (N,) float64, the mean of the metric of each client's model on the client's training examples; 0 where
            its model is not among these.
        predicted: (S, M), the class of the largest output for each test example; None in a regression.
        outputs: (S, M, C), where the federation has a schedule, whose main task is measured; None elsewhere.
    """

    test: Floats
    training: Floats
    predicted: Tensor | None
    outputs: Tensor | None

    @staticmethod
    def join(parts: "Sequence[Predictions]") -> "Predictions":
        """Predictions of the models of all ``parts``, of which each client uses one."""
        return Predictions(
            test=np.concatenate([part.test for part in parts]),
            training=np.sum([part.training for part in parts], axis=0),
            predicted=_joined([part.predicted for part in parts]),
            outputs=_joined([part.outputs for part in parts]),
        )


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    tensors = [part for part in parts if part is not None]
    return torch.cat(tensors) if tensors else None


def predictions_of(
    outputs: ModelOutputs, first: int, deployed: Deployed, federation: Federation, metric: Metric
) -> Predictions:
    """Predictions of the deployed models from number ``first`` on, which have these ``outputs``."""
    values = torch.stack([metric(row, outputs.test_labels).double() for row in outputs.test])
    by_group = [values[:, federation.test.group == g].mean(dim=1) for g in range(len(federation.groups))]
    total = torch.zeros(len(federation), dtype=torch.float64)
    for s, (examples, training) in enumerate(zip(outputs.evaluated, outputs.values, strict=True), first):
        owner = outputs.owner[examples]
        # Of others the value may be infinite, so it is left out, not multiplied by zero.
        total.index_add_(0, owner, torch.where(deployed.model[owner] == s, training, 0.0))
    predicted = None
    if federation.classes is not None:
        predicted = outputs.test.argmax(dim=2).to(torch.uint8 if federation.classes <= 256 else torch.int32)
    return Predictions(
        test=torch.stack(by_group, dim=1).numpy(),
        training=(total / federation.clients.sizes).numpy(),
        predicted=predicted,
        outputs=outputs.test if federation.schedule is not None else None,
    )
