"""The rows of `rounds.csv`."""

from collections.abc import Mapping
from math import nan

import numpy as np
import torch
from torch import Tensor

from shoal.control import COLUMN, SHOWN
from shoal.data import Federation
from shoal.engine import Engine, RoundReport, State

Row = Mapping[str, float]
"""One cluster in one round: numbers by column."""


def round_metrics(
    state: State, report: RoundReport, federation: Federation, engine: Engine, *, evaluated: bool
) -> tuple[Row, ...]:
    """One row per cluster: its clients in this round, their loss, and the model's accuracy and risk.

    Args:
        state: after the round.
        report: of the round.
        evaluated: whether accuracies, means of the model's metric, are computed; they are NaN otherwise.
    """
    group = federation.group[report.cohort]
    rows = []
    for k, model in enumerate(state.models):
        inside = report.assignment == k
        sizes = federation.clients.sizes[report.cohort[inside]]
        by_group = torch.bincount(group[inside], minlength=len(federation.groups))
        mix = by_group.double().numpy()
        accuracies = np.array(group_accuracies(model, federation, engine) if evaluated else [nan] * len(mix))
        row: dict[str, float] = {
            "round": state.round,
            "cluster": k,
            "clients": int(inside.sum()),
            "examples": int(sizes.sum()),
            **risk_columns(state, k),
            "train_loss": nan if report.losses is None or not inside.any() else float(report.losses[inside, k].mean()),
            "accuracy": float(np.average(accuracies[mix > 0], weights=mix[mix > 0])) if mix.any() else nan,
        }
        for g, name in enumerate(federation.groups):
            row[f"accuracy.{name}"] = float(accuracies[g])
            row[f"clients.{name}"] = int(by_group[g])
        rows.append(row | directive_columns(state, k))
    return tuple(rows)


def not_evaluated(row: Row) -> Row:
    """A row as `round_metrics` makes it where accuracies are not computed."""
    return {name: nan if name.partition(".")[0] == "accuracy" else value for name, value in row.items()}


def risk_columns(state: State, k: int) -> dict[str, float]:
    """The last estimate of the risk of model ``k``, and the ends of its interval."""
    low, high = state.risk_intervals[k].tolist()
    return {"risk": float(state.risks[k]), "risk_low": low, "risk_high": high}


def directive_columns(state: State, k: int) -> dict[str, float]:
    """The directives of a coordinator for cluster ``k`` and their outcome there; nothing without a coordinator.

    Where an algorithm changed the number of models, they are of others until the next estimate, and NaN here.
    """
    columns = {f"{COLUMN}{name}": values for name, values in state.directives.items()}
    columns |= {name: state.control[name] for name in SHOWN if name in state.control}
    return {name: float(values[k]) if len(values) == len(state.models) else nan for name, values in columns.items()}


def metric_values(model: Tensor, federation: Federation, engine: Engine) -> Tensor:
    """The model's metric on each test example, float64."""
    metric = engine.model.metric_for(federation.classes)
    return metric(engine.outputs(model, federation.test.x), federation.test.y).cpu().double()


def group_accuracies(model: Tensor, federation: Federation, engine: Engine) -> list[float]:
    """The mean of the model's metric on each group's test examples."""
    return group_means(metric_values(model, federation, engine), federation)


def group_means(values: Tensor, federation: Federation) -> list[float]:
    """The mean of ``values``, one per test example, over each group's."""
    return [float(values[federation.test.group == g].mean()) for g in range(len(federation.groups))]
