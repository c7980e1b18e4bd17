"""The rows of ``rounds.csv`` and the keys of ``summary.json`` that a server knows without its clients' data."""

from math import isnan, nan

import torch

from shoal.engine import RoundPlan, State, Training
from shoal.simulation.round_metrics import Row, directive_columns, group_means, metric_values, risk_columns


def round_rows(training: Training, state: State, plan: RoundPlan, *, evaluated: bool) -> tuple[Row, ...]:
    """One row per cluster: its clients in this round, and its model's risk and accuracy on the server's test set.

    The server does not know the clients' groups: ``accuracy.<group>`` is of the model, on each group's test examples,
    and ``accuracy`` on all of them; both are NaN in a round that is not ``evaluated``.
    """
    federation, rows = training.federation, []
    present = torch.nonzero(state.trained == state.round)
    for k, model in enumerate(state.models):
        inside = present[:, 0][present[:, 1] == k] if len(plan.assignment) else present[:0, 0]
        values = metric_values(model, federation, training.engine) if evaluated else torch.empty(0)
        means = group_means(values, federation) if evaluated else [nan] * len(federation.groups)
        row: dict[str, float] = {
            "round": state.round,
            "cluster": k,
            "clients": int((plan.assignment == k).sum()),
            "examples": int(federation.clients.sizes[inside].sum()),
            **risk_columns(state, k),
            "accuracy": float(values.mean()) if len(values) else nan,
            **{f"accuracy.{name}": mean for name, mean in zip(federation.groups, means, strict=True)},
        }
        rows.append(row | directive_columns(state, k))
    return tuple(rows)


def summary_of(training: Training, state: State, rows: tuple[Row, ...], counts: dict[str, int]) -> dict[str, float]:
    """The keys of ``summary.json`` that are measured after the last round: of clusters, and ``counts`` of events."""
    summary: dict[str, float] = {}
    last = {row["cluster"]: row for row in rows if row["round"] == state.round}
    for k in range(len(state.models)):
        summary[f"clusters.{k}.clients"] = int((state.assignment == k).sum())
        summary[f"clusters.{k}.risk"] = float(state.risks[k])
        for name in training.federation.groups:
            value = last.get(k, {}).get(f"accuracy.{name}", nan)
            if not isnan(value):  # which a summary does not hold
                summary[f"clusters.{k}.accuracy.{name}"] = value
    return summary | {f"events.{kind}": count for kind, count in sorted(counts.items())}
