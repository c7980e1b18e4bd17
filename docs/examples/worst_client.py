"""A metric: the accuracy of the client that fares worst, in the federation, in each group and with each model."""

from shoal.audit import measurement
from shoal.audit.measurement import FinishedTraining
from shoal.metrics import Metric
from shoal.metrics.summary import Summary

NAME, TITLE = "worst_client", "accuracy of the worst client"


@measurement(NAME, TITLE, Metric(NAME, TITLE, "The lowest of its clients'.", "percent", "higher"))
def worst_client(finished: FinishedTraining) -> Summary:
    """Give ``worst_client``, ``worst_client.<group>`` and ``clusters.<k>.worst_client``.

    A client's accuracy is its model's, on test examples of its group.
    """
    clients = finished.clients
    by_group, by_model = (clients.groupby(column)["accuracy"].min() for column in ("group", "cluster"))
    return Summary(
        overall={NAME: float(clients["accuracy"].min())},
        by_group={str(group): {NAME: float(value)} for group, value in by_group.items()},
        by_cluster={int(k): {NAME: float(value)} for k, value in by_model.items()},
    )
