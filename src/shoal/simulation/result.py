"""The outcome of a run in memory."""

from dataclasses import dataclass

import pandas as pd

from shoal.engine import State
from shoal.simulation.summary import Summary

CLIENT_COLUMNS = (
    "client", "group", "cluster", "examples", "threshold", "alpha", "beta", "loss", "accuracy", "mia", "violated",
)  # fmt: skip
"""The first columns of `clients.csv`."""

EXPOSURE_COLUMNS = ("exposure", "exposure_low", "attack", "exceeded")
"""Those that follow; see `exposure_of_clients`."""


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of a run.

    Args:
        summary: the metrics of `summary.json`.
        clients: one row per client: `CLIENT_COLUMNS`, ``train_accuracy`` and `EXPOSURE_COLUMNS`; and ``epsilon``
            where local steps are private.
        rounds: one row per round and cluster, as in `rounds.csv`.
        roc: ROC curves of the configured attack by group, as in `roc.csv`.
        state: the final models, risks and assignment.
        updates: one row per aggregated update, as in `property.csv`; None without a property attack.
    """

    summary: Summary
    clients: pd.DataFrame
    rounds: pd.DataFrame
    roc: pd.DataFrame
    state: State
    updates: pd.DataFrame | None = None

    def __repr__(self) -> str:
        known = {**self.summary.run, **self.summary.overall}
        return f"Result({', '.join(f'{key}={value}' for key, value in known.items() if '.' not in key)})"
