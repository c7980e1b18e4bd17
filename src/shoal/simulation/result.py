"""What came out of a run: the summary, one row per client, one row per round and cluster, and the ROC curves."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from shoal.engine import State
from shoal.simulation import property_metrics

Summary = dict[str, float | int | str]


CLIENT_COLUMNS = (
    "client", "group", "cluster", "examples", "threshold", "alpha", "beta", "loss", "accuracy", "mia", "violated",
)  # fmt: skip
"""The columns of `clients.csv`."""


@dataclass(frozen=True, eq=False)
class Result:
    """The outcome of a run, as data frames.

    Args:
        summary: the figures of `summary.json`, by key. A figure that is undefined (the exposure of a model that
            no client chose) is left out.
        clients: a row a client: `CLIENT_COLUMNS` and ``train_accuracy``; and ``epsilon`` where local steps are private.
        rounds: a row a round and cluster.
        roc: false and true positive rates of the configured attack by group.
        state: the final models, risks and choices.
        updates: what a property attack found: `property_metrics.updates_of`; None where there was none.
    """

    summary: Summary
    clients: pd.DataFrame
    rounds: pd.DataFrame
    roc: pd.DataFrame
    state: State
    updates: pd.DataFrame | None = None

    def with_property(self, updates: pd.DataFrame) -> "Result":
        """This result with what a property attack found."""
        return replace(self, summary=self.summary | known(property_metrics.figures_of(updates)), updates=updates)

    def __repr__(self) -> str:
        return f"Result({', '.join(f'{key}={value}' for key, value in self.summary.items() if '.' not in key)})"


def known(summary: Mapping[str, float | int | str]) -> Summary:
    """The figures that are defined."""
    return {key: value for key, value in summary.items() if not (isinstance(value, float) and np.isnan(value))}
