"""What the final models say of test and training examples, as far as a run's metrics ask."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.audit.model_outputs import ModelOutputs
from shoal.data import Federation
from shoal.engine import Deployed
from shoal.models import Metric


@dataclass(frozen=True, eq=False)
class Answers:
    """Of S models, without their outputs: for N clients with models of their own these are N M C numbers.

    Args:
        test: (S, G) float64, the mean of the metric of each model on each group's M test examples.
        training: (N,) float64, the mean of the metric of each client's model on the client's training examples; 0 where
            its model is not among these.
        predicted: (S, M), the class of the largest output for each test example; None in a regression.
        outputs: (S, M, C), where the federation has a schedule, whose main task is measured; None elsewhere.
    """

    test: NDArray[np.float64]
    training: NDArray[np.float64]
    predicted: Tensor | None
    outputs: Tensor | None

    @staticmethod
    def of(outputs: ModelOutputs, first: int, deployed: Deployed, federation: Federation, metric: Metric) -> "Answers":
        """Of the models from number ``first`` on whose ``outputs`` are given."""
        values = torch.stack([metric(each, outputs.test_labels).double() for each in outputs.test])
        of_groups = [values[:, federation.test.group == g].mean(dim=1) for g in range(len(federation.groups))]
        total = torch.zeros(len(federation), dtype=torch.float64)
        for s, (examples, of_each) in enumerate(zip(outputs.evaluated, outputs.values, strict=True), first):
            owner = outputs.owner[examples]
            # Of others the value may be infinite, so it is left out, not multiplied by zero.
            total.index_add_(0, owner, torch.where(deployed.model[owner] == s, of_each, 0.0))
        predicted = None
        if federation.classes is not None:
            predicted = outputs.test.argmax(dim=2).to(torch.uint8 if federation.classes <= 256 else torch.int32)
        return Answers(
            test=torch.stack(of_groups, dim=1).numpy(),
            training=(total / federation.clients.sizes).numpy(),
            predicted=predicted,
            outputs=outputs.test if federation.schedule is not None else None,
        )

    @staticmethod
    def joined(parts: "Sequence[Answers]") -> "Answers":
        """Of the models of all ``parts``, of which each client uses one."""
        return Answers(
            test=np.concatenate([each.test for each in parts]),
            training=np.sum([each.training for each in parts], axis=0),
            predicted=_joined([each.predicted for each in parts]),
            outputs=_joined([each.outputs for each in parts]),
        )


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [each for each in parts if each is not None]
    return torch.cat(known) if known else None
