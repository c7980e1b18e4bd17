"""The outcome of a simulation: its metrics as a value and as tables, and its final state."""

from dataclasses import dataclass

import pandas as pd

from shoal.core.representation import one_line
from shoal.engine import State
from shoal.metrics.summary import Summary

CLIENT_COLUMNS = (
    "client", "group", "cluster", "examples", "threshold", "alpha", "beta", "loss", "accuracy", "mia", "violated",
)  # fmt: skip
"""The first columns of `clients.csv`."""

EXPOSURE_COLUMNS = ("exposure", "exposure_low", "exposure_null_high", "attack", "exceeded")
"""The columns of `clients.csv` that follow; see `exposure_of_clients`."""

ROUND_COLUMNS = ("round", "cluster", "clients", "risk", "accuracy")
"""Columns that `rounds.csv` has, whatever the groups."""

ROC_COLUMNS = ("group", "non_members", "fpr", "tpr")
"""The columns of `roc.csv`."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Metrics, tables and the final state of a simulation.

    Args:
        summary: the metrics of `summary.json`.
        clients: one row per client: `CLIENT_COLUMNS`, ``train_accuracy``, `EXPOSURE_COLUMNS` and ``threshold_drawn``;
            ``view`` where limits name one, ``epsilon`` where local steps are private, `CLIENT_CANARY_COLUMNS` with
            canaries, and ``name`` where the federation has names.
        rounds: one row per round and cluster, as in `rounds.csv`.
        roc: ROC curves of the configured attack by group, as in `roc.csv`.
        state: after the last round; its assignment is what each client trained last, and `clients` has what it uses.
        updates: the rows of the round attack's table, such as `property.csv`; None without one.
        canaries: one row per canary, as in `canaries.csv`; None without canaries.
    """

    summary: Summary
    clients: pd.DataFrame
    rounds: pd.DataFrame
    roc: pd.DataFrame
    state: State
    updates: pd.DataFrame | None = None
    canaries: pd.DataFrame | None = None
    __repr__ = one_line
