"""The rows of `rounds.csv`."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from shoal.data import Federation
from shoal.engine import Engine, RoundReport, State

Row = Mapping[str, float]
"""A cluster in a round."""


def round_metrics(
    state: State, report: RoundReport, federation: Federation, engine: Engine, *, evaluated: bool
) -> tuple[Row, ...]:
    """A row for each cluster: who trained it in this round, at what loss, and how good and exposed it is.

    Args:
        state: after the round.
        report: of the round.
        federation: whose clients these are.
        engine: computes accuracies.
        evaluated: whether accuracies are computed; they are NaN where not.
    """
    group = federation.group[report.cohort]
    rows = []
    for k, model in enumerate(state.models):
        inside = report.assignment == k
        sizes = federation.clients.sizes[report.cohort[inside]]
        by_group = torch.bincount(group[inside], minlength=len(federation.groups))
        loss = float("nan")
        if report.losses is not None and inside.any():
            loss = float(report.losses[inside, k].mean())
        row: dict[str, float] = {
            "round": state.round,
            "cluster": k,
            "clients": int(inside.sum()),
            "examples": int(sizes.sum()),
            "risk": float(state.risks[k]),
            "train_loss": loss,
        }
        accuracies = _accuracies(model, federation, engine) if evaluated else [float("nan")] * len(federation.groups)
        mix = by_group.double().numpy()
        row["accuracy"] = (
            float(np.average(np.array(accuracies)[mix > 0], weights=mix[mix > 0])) if mix.any() else float("nan")
        )
        for g, name in enumerate(federation.groups):
            row[f"accuracy.{name}"] = accuracies[g]
            row[f"clients.{name}"] = int(by_group[g])
        rows.append(row)
    return tuple(rows)


def _accuracies(model: Tensor, federation: Federation, engine: Engine) -> list[float]:
    right = (engine.outputs(model, federation.test.x).argmax(dim=1) == federation.test.y).cpu().double()
    return [float(right[federation.test.group == g].mean()) for g in range(len(federation.groups))]
