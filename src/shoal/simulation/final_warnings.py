"""Warnings about small clusters, and about models that learned nothing."""

import logging
from dataclasses import dataclass
from math import isfinite

import torch

from shoal.audit.measurement import FinishedTraining, measurement
from shoal.core.errors import quote
from shoal.data import Federation
from shoal.metrics.summary import Summary
from shoal.models.model import cross_entropy, squared_error

LOG = logging.getLogger("shoal")

FEW_ROUNDS = 5
"""The minimum number of rounds for a warning that a model learned nothing."""

MOST_NAMES = 10
"""The maximum number of clients that a warning names."""


@dataclass(frozen=True)
class SmallClusters:
    """A measurement that counts clusters of fewer than ``min_clients`` clients and logs a warning for each cluster."""

    min_clients: int
    name, title = "small-clusters", "Small clusters"

    def measure(self, finished: FinishedTraining) -> Summary:
        """Return the number of small clusters as ``clusters.small``, or nothing if there is only one model."""
        if len(finished.state.models) == 1:
            return Summary()
        small = warn_of_small_clusters(finished.federation, finished.deployed.assignment, self.min_clients)
        return Summary(overall={"clusters.small": len(small)})


def small_clusters(assignment: torch.Tensor, min_clients: int) -> list[int]:
    """List the clusters with at least one but fewer than ``min_clients`` clients; ``assignment`` is (N,) int64.

    >>> small_clusters(torch.tensor([0, 0, 0, 2]), min_clients=3)
    [2]
    """
    sizes = torch.bincount(assignment)
    return torch.nonzero((sizes > 0) & (sizes < min_clients)).flatten().tolist()


def warn_of_small_clusters(federation: Federation, assignment: torch.Tensor, min_clients: int) -> list[str]:
    """Log and return a warning for each cluster of fewer than ``min_clients`` clients."""
    sentences = list[str]()
    for cluster in small_clusters(assignment, min_clients):
        inside = torch.nonzero(assignment == cluster).flatten().tolist()
        names = [str(federation.ids[i].item()) if federation.names is None else federation.names[i] for i in inside]
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        sentences.append(
            f"cluster {cluster} has {len(inside)} client{'s' * (len(inside) > 1)} ({quote(names[:MOST_NAMES])}{more}), "
            f"fewer than 'evaluation.min_clients' = {min_clients}; clients of small clusters are the most exposed; "
            "set algorithm.name = 'cluster-size-floor' to train small clusters with more clients"
        )
        LOG.warning("%s", sentences[-1])
    return sentences


@measurement("learned", "Learning")
def learning(finished: FinishedTraining) -> Summary:
    """Warn if the last training loss is not below the loss of a constant prediction.

    The constant prediction is the class frequencies in a classification, and the targets' mean in a regression.
    """
    federation, loss = finished.federation, float(finished.losses.mean())
    if finished.state.round < FEW_ROUNDS:
        return Summary()
    if not isfinite(loss):
        LOG.warning("the training loss after the last round is not finite: nothing was learned; %s", _ADVICE)
        return Summary()
    labels, measure = federation.clients.y[federation.clients.indices].cpu(), finished.training.engine.model.loss
    if federation.classes is not None and measure is cross_entropy:
        shares = torch.bincount(labels, minlength=federation.classes).double() / len(labels)
        prior, known = float(torch.special.entr(shares).sum()), "classes' frequencies"
    elif federation.classes is None and measure is squared_error:
        prior, known = float(labels.double().var(dim=0, correction=0).mean()), "targets' mean"
    else:
        return Summary()
    if loss >= prior > 0:
        LOG.warning(
            "the training loss after the last round, %.3f, is not below the loss of predicting the %s, %.3f: "
            "nothing was learned; %s",
            loss,
            known,
            prior,
            _ADVICE,
        )
    return Summary()


_ADVICE = "choose another 'local.learning_rate' or more rounds"
