"""The choice of the number of clusters by clients' held-out losses, for IFCA with ``clusters = "auto"``."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
import torch
from scipy.special import stdtrit

from shoal.algorithms.clusters.ifca import most_clusters, with_clusters
from shoal.algorithms.wrapper import with_bases
from shoal.algorithms.wrappers.starts import InitialisationPhase, OneShotStart
from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.data.shards import Shards
from shoal.engine import Engine
from shoal.metrics.intervals import Floats
from shoal.simulation.baselines import train_alone
from shoal.simulation.simulation import Simulation

LOG = logging.getLogger("shoal")

HELD_OUT = 5
"""The number of training examples per held-out example of a client."""

LEVEL = 0.05
"""The largest probability of choosing several clusters when one cluster is enough."""


@dataclass(frozen=True)
class ClusterNumber:
    """The chosen number of clusters, with the clients' mean held-out loss for each number from 1."""

    clusters: int
    losses: tuple[float, ...]

    @property
    def metrics(self) -> dict[str, float]:
        """The entries ``auto.clusters`` and ``auto.loss.K`` of `summary.json`, one loss per number of clusters."""
        return {"auto.clusters": self.clusters} | {f"auto.loss.{k}": loss for k, loss in enumerate(self.losses, 1)}

    @staticmethod
    def of_metrics(metrics: Mapping[str, float]) -> "ClusterNumber":
        """Restore a `ClusterNumber` from its `metrics`."""
        losses = [value for key, value in metrics.items() if key.startswith("auto.loss.")]
        return ClusterNumber(int(metrics["auto.clusters"]), tuple(losses))


def with_cluster_number(algorithm: Any, clusters: int) -> Any:  # noqa: ANN401 - any algorithm
    """Return ``algorithm`` with ``clusters`` clusters, and with `OneShotStart` if a start phase is needed.

    Several clusters need a start phase, because random initial models often put two groups into one cluster.

    >>> import shoal
    >>> with_cluster_number(shoal.IFCA("auto"), 2).name, with_cluster_number(shoal.IFCA("auto"), 1).name
    ('one-shot-start', 'ifca')
    """
    algorithm = with_clusters(algorithm, clusters)
    complete = clusters == 1 or any(isinstance(base, InitialisationPhase) for base in with_bases(algorithm))
    return algorithm if complete else OneShotStart(algorithm)


def choose_cluster_number(simulation: Simulation, engine: Engine, watch: Callable[[int, int], object]) -> ClusterNumber:
    """Train with 1, 2, ... clusters on most examples, and choose the number by held-out losses.

    Each trial uses the rounds and seed of ``simulation``. The held-out examples are the clients' hold-out sets if every
    client has one, otherwise a fifth of the training examples. `smallest_unbeaten` makes the choice.

    Args:
        simulation: the simulation, moved to the engine, with ``clusters = "auto"``.
        watch: a function that is called before each trial with the trial's number of clusters and the largest number.

    Raises:
        InputError: fewer than two clients have examples to hold out.
    """
    most = min(most_clusters(simulation.algorithm) or 1, len(simulation.federation))
    federation, held_out = split_for_trials(simulation.federation, Stream(simulation.seed)("cluster number"))
    scored = torch.nonzero(held_out.sizes > 0).flatten()
    require(
        len(scored) > 1, "algorithm.clusters = 'auto' needs at least two clients with two examples each; set a number"
    )
    rows = list[Floats]()
    for clusters in range(1, most + 1):
        watch(clusters, most)
        algorithm = with_cluster_number(simulation.algorithm, clusters)
        trial = replace(simulation, algorithm=algorithm, federation=federation)
        deployed = train_alone(trial, engine)
        losses = np.empty(len(scored))
        models = deployed.model[scored]
        for k in models.unique().tolist():
            users = torch.nonzero(models == k).flatten()
            losses[users.numpy()] = engine.losses(deployed.models[k][None], held_out.take(scored[users]))[:, 0].numpy()
        rows.append(losses)
        LOG.info("trial with %d clusters: clients' mean held-out loss %.4f", clusters, losses.mean())
    return ClusterNumber(smallest_unbeaten(np.stack(rows)), tuple(float(row.mean()) for row in rows))


def split_for_trials(federation: Federation, stream: Stream) -> tuple[Federation, Shards]:
    """Return a federation for trials and each client's held-out examples; a client keeps its only example."""
    if bool((federation.holdout.sizes > 0).all()):
        return federation, federation.holdout
    clients, trained, held_out = federation.clients, [], []
    for index, number in enumerate(federation.ids.tolist()):
        own = clients.indices_of(index)
        order = torch.randperm(len(own), generator=stream("client", number).generator())
        count = max(len(own) // HELD_OUT, min(1, len(own) - 1))
        held_out.append(own[order[:count]])
        trained.append(own[order[count:].sort().values])
    parts = (
        Shards.from_indices(
            clients.x, clients.y, torch.cat(part), torch.tensor([*map(len, part)]), memory_mapped=clients.memory_mapped
        )
        for part in (trained, held_out)
    )
    first, second = parts
    return replace(federation, clients=first), second


def smallest_unbeaten(losses: Floats) -> int:
    """Return the smallest number of clusters that no larger number beats.

    A number beats a smaller number if a one-sided paired t test shows that the clients' mean loss is lower. The tests
    share `LEVEL` by Bonferroni's correction. If one cluster is enough, the function returns 1 with a probability of at
    least 95 %.

    Args:
        losses: each client's held-out losses with 1 to K clusters, (K, n); rows with infinite losses are skipped.

    >>> smallest_unbeaten(np.array([[1.0, 2.0, 3.0], [0.5, 1.4, 2.4], [0.4, 1.6, 2.2]]))
    2
    """
    usable = np.flatnonzero(np.isfinite(losses).all(axis=1)).tolist()
    for place, number in enumerate(usable):
        gains = losses[number] - losses[usable[place + 1 :]]
        bound = float(stdtrit(gains.shape[1] - 1, 1 - LEVEL / max(1, len(gains))))
        if not (gains.mean(axis=1) > bound * gains.std(axis=1, ddof=1) / sqrt(gains.shape[1])).any():
            return number + 1
    return 1
