"""Recomputation of the update that the server received from one client."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from shoal.data.shards import Shards
from shoal.engine.rounds.round_plan import RoundPlan, RoundReport
from shoal.engine.rounds.training import Training
from shoal.engine.state import State


def client_updates(
    training: Training, before: State, report: RoundReport, client: int, examples: Shards | None = None
) -> Iterator[tuple[int, float, Tensor]]:
    """Recompute the updates that a client sent in a round; yield nothing if the client did not take part.

    Args:
        examples: one owner's examples to train on instead of the client's, with new randomness and equal weights;
            ``None`` trains on the client's examples.

    Yields:
        The cluster whose model the update changes, the client's aggregation weight, and the client's update, (P,).

    Example:
        >>> import shoal.toy
        >>> from shoal.engine import client_updates
        >>> federation, model, local = shoal.toy.one_group()
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.FedAvg(), local, engine, shoal.Stream(0))
        ...     before = training.start()
        ...     after, report = training.round(before)
        ...     sent = [list(client_updates(training, before, report, client)) for client in range(3)]
        ...
        >>> mean = sum(weight * update for ((_, weight, update),) in sent)
        >>> (after.models[0] - before.models[0]).allclose(mean)
        True
    """
    layout = training.engine.model.layout
    sizes = training.federation.clients_in_round(before.round + 1).sizes[report.cohort]
    for position in torch.nonzero(training.federation.ids[report.cohort] == client).flatten():
        one = position[None]
        for index, local in enumerate(report.plan.trainings):
            if local.weights is None or not bool(local.participants()[position]):
                continue
            alone = replace(local.take(one, sizes), keep=lambda update: update, participates=None)
            cluster = report.plan.clusters(index)[one]
            trainer = training.trainer(before, report.cohort[one])
            if examples is not None:
                alone = replace(alone, example_weights=None)
                trainer = replace(trainer, shards=examples, batches=training.batches(before)("other examples"))
            update = trainer.train(before, RoundPlan(cluster, (alone,)), index)[0].kept[0]
            assert update is not None
            k = int(cluster)
            yield k, float(local.weights[k, position]), local.shared_part(update, layout)[0]
