"""The main task's AUC, of what clients get from their models and of what models know of an example."""

from math import nan

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from shoal.audit.measurement import FinishedTraining, measurement
from shoal.data import Federation
from shoal.metrics import roc_auc
from shoal.metrics.summary import Metrics, Summary

Floats = NDArray[np.float64]


@measurement("main", "Main task")
def main_task(finished: FinishedTraining) -> Summary:
    """The AUC of the main task of a federation with a schedule."""
    outputs, model = finished.predictions.outputs, finished.deployed.model.numpy()
    return Summary() if outputs is None else Summary(overall=main_task_metrics(outputs, model, finished.federation))


def main_task_metrics(outputs: Tensor, assignment: NDArray[np.int64], federation: Federation) -> Metrics:
    """The AUC of the main task, by summary key.

    ``main.auc`` is over what clients see: each client's model on the test examples, weighted to the labels that the
    client itself has. ``main.auc_even`` is over the test set as it is. Where clients differ in their labels, models
    that know of an example only whose it is have a high ``main.auc``, and a ``main.auc_even`` of 0.5.

    Args:
        outputs: (K, M, C), of each model for each test example.
        assignment: (N,), each client's model.
        federation: of these clients and test examples. Without classes there is no AUC.
    """
    if federation.classes is None:
        return {}
    labels = federation.test.y.cpu()
    own = torch.zeros(len(federation), federation.classes, dtype=torch.float64)
    clients = federation.clients
    own.index_put_(
        (clients.owners(), clients.y.cpu()[clients.indices]), torch.ones(len(clients.indices)).double(), True
    )
    own /= own.sum(dim=1, keepdim=True)
    even = torch.bincount(labels, minlength=federation.classes).double() / len(labels)
    ratio = torch.where(even > 0, own / even.clamp(min=1e-300), 0.0)[:, labels].numpy()
    chosen = np.unique(assignment)
    seen = np.stack([ratio[assignment == k].sum(axis=0) for k in chosen])
    equal = np.stack([np.full(len(labels), float((assignment == k).sum())) for k in chosen])
    answers = outputs[chosen].softmax(dim=2).double().numpy()
    return {
        "main.auc": _one_against_rest(answers, labels.numpy(), seen),
        "main.auc_even": _one_against_rest(answers, labels.numpy(), equal),
    }


def _one_against_rest(answers: Floats, labels: NDArray[np.int64], weights: Floats) -> float:
    """Mean over classes of the AUC of each against the others; of two classes, the AUC of the second."""
    models, classes = len(answers), answers.shape[2]
    truth, weight = np.tile(labels, models), weights.ravel()
    aucs = []
    for c in range(classes) if classes > 2 else [1]:
        used = weight > 0
        if len(np.unique(truth[used] == c)) == 2:
            score = answers[:, :, c].ravel()[used]
            aucs.append(roc_auc(score, truth[used] == c, weight[used]))
    return float(np.mean(aucs)) if aucs else nan
