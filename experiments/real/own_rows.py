"""Accuracy of each client's model on the client's own test rows.

`accuracy.overall` of summary.json is measured on the test rows of the client's *group*. Where clients are real and
differ, that asks a client's own model about the rows of others, which is not what the client wants to know.
"""

import numpy as np

from shoal.audit.measurement import FinishedTraining, measurement
from shoal.metrics.summary import Summary


@measurement("own", "Clients' own test rows")
def own_rows(finished: FinishedTraining) -> Summary:
    """Measure the mean over clients of the accuracy on their own test rows, also by group, and the worst clients'."""
    federation, engine, model = finished.federation, finished.training.engine, finished.deployed.model.tolist()
    test, clients = federation.test, {}
    assert test.client is not None
    for i, k in enumerate(model):
        rows = test.client == i
        if rows.any():
            hits = finished.metric(engine.outputs(finished.deployed.models[k], test.x[rows]), test.y[rows])
            clients[i] = float(hits.double().mean())
    of_clients = np.array([*clients.values()])
    group = federation.group.numpy()[[*clients]]
    tenth = max(1, len(of_clients) // 10)
    return Summary(
        overall={
            "own.accuracy": float(of_clients.mean()),
            "own.worst": float(of_clients.min()),
            "own.worst_tenth": float(np.sort(of_clients)[:tenth].mean()),
        },
        by_group={
            name: {"own.accuracy": float(of_clients[group == g].mean())}
            for g, name in enumerate(federation.groups)
            if (group == g).any()
        },
    )
