"""The rows of `rounds.csv`, changes of a coordinator's directives, and the AUC of the main task."""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import nan

import numpy as np
import torch
from torch import Tensor

from shoal.audit.measurement import FinishedTraining, measurement
from shoal.control import DIRECTIVE_COLUMN, ROUND_FIGURES, directives_of
from shoal.data import Federation
from shoal.engine import Engine, RoundReport, State
from shoal.metrics import roc_auc
from shoal.metrics.intervals import Floats, Ints
from shoal.metrics.summary import Metrics, Summary

RoundRow = Mapping[str, float]
"""The numbers of one cluster in one round, by column."""

RoundRows = Sequence[RoundRow]
"""The rows of `rounds.csv`, one per round and cluster, in order."""

SUMMARY_COLUMNS = ("over_limit", "limit_unmet")
"""The columns of a coordinator's memory that `summary.json` contains."""


def round_metrics(
    state: State, report: RoundReport, federation: Federation, engine: Engine, *, evaluated: bool
) -> tuple[RoundRow, ...]:
    """Return one row per cluster: the number and loss of its clients in this round, and its model's accuracy and risk.

    If ``evaluated`` is false, the accuracies are NaN.
    """
    shares = federation.group_shares[report.cohort]
    rows = []
    for k, model in enumerate(state.models):
        inside = report.assignment == k
        sizes = federation.clients.sizes[report.cohort[inside]]
        by_group, mix = (shares[inside] > 0).sum(dim=0), shares[inside].sum(dim=0).numpy()
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


def not_evaluated(row: RoundRow) -> RoundRow:
    """Return a row with its accuracies replaced by NaN."""
    return {name: nan if name.partition(".")[0] == "accuracy" else value for name, value in row.items()}


def risk_columns(state: State, k: int) -> dict[str, float]:
    """Return the last estimate of the risk of model ``k``, and the bounds of its interval."""
    low, high = state.risk_intervals[k].tolist()
    return {"risk": float(state.risks[k]), "risk_low": low, "risk_high": high}


def directive_columns(state: State, k: int) -> dict[str, float]:
    """Return a coordinator's directives and figures for cluster ``k``; empty without a coordinator.

    After a change of the number of models, the values are NaN until the next risk estimate.
    """
    columns = {f"{DIRECTIVE_COLUMN}{name}": values for name, values in state.directives.items()}
    columns |= {name: state.control[name] for name in ROUND_FIGURES if name in state.control}
    return {name: float(values[k]) if len(values) == len(state.models) else nan for name, values in columns.items()}


@measurement("directive", "Coordination")
def coordination(finished: FinishedTraining) -> Summary:
    """Measure each cluster's last directives and whether its members' limits are met; empty without a coordinator."""
    state = finished.state
    columns = {name: state.control[name] for name in SUMMARY_COLUMNS if name in state.control}
    columns |= {f"{DIRECTIVE_COLUMN}{name}": values for name, values in state.directives.items()}
    # After a change of the number of models they belong to other models.
    columns = {name: values for name, values in columns.items() if len(values) == len(state.models)}
    return Summary(
        by_cluster={
            k: {name: int(values[k]) if name == "limit_unmet" else float(values[k]) for name, values in columns.items()}
            for k in range(len(state.models))
            if columns
        }
    )


def changed_directives(rows: RoundRows) -> dict[str, list[float]]:
    """Return the directives (K,) that changed after the last round, by name.

    >>> changed_directives([{"round": r, "cluster": 0, "directive.l2": s} for r, s in ((1, 0.0), (2, 0.5))])
    {'l2': [0.5]}
    """
    now, before = (directives_of(rows) for rows in _last_two_rounds(rows))
    return {name: values for name, values in now.items() if values != before.get(name, [0.0] * len(values))}


def became_unmet(rows: RoundRows) -> list[int]:
    """List the clusters whose members' limits became unreachable in the last round."""
    now, before = ({row["cluster"] for row in rows if row.get("limit_unmet")} for rows in _last_two_rounds(rows))
    return sorted(int(k) for k in now - before)


def _last_two_rounds(rows: RoundRows) -> tuple[RoundRows, RoundRows]:
    """Return the rows of the last round and of the previous round."""
    last = rows[-1]["round"] if rows else 0
    recent = list(takewhile(lambda row: row["round"] >= last - 1, reversed(rows)))[::-1]
    now, before = ([row for row in recent if row["round"] == number] for number in (last, last - 1))
    return now, before


def metric_values(model: Tensor, federation: Federation, engine: Engine) -> Tensor:
    """Return the model's metric on each test example, (M,) float64."""
    metric = engine.model.metric_for(federation.classes)
    return metric(engine.outputs(model, federation.test.x), federation.test.y).cpu().double()


def group_accuracies(model: Tensor, federation: Federation, engine: Engine) -> list[float]:
    """Return the mean of the model's metric on each group's test examples."""
    return group_means(metric_values(model, federation, engine), federation)


def group_means(values: Tensor, federation: Federation) -> list[float]:
    """Return the mean of ``values``, one per test example, in each group."""
    return [float(values[federation.test.group == g].mean()) for g in range(len(federation.groups))]


@measurement("main", "Main task")
def main_task(finished: FinishedTraining) -> Summary:
    """Measure the AUC of the main task of a federation with a schedule."""
    outputs, model = finished.predictions.outputs, finished.deployed.model.numpy()
    return Summary() if outputs is None else Summary(overall=main_task_metrics(outputs, model, finished.federation))


def main_task_metrics(outputs: Tensor, assignment: Ints, federation: Federation) -> Metrics:
    """Return the AUC of the main task, by key of `summary.json`; empty in a regression.

    ``main.auc`` weights the test examples of each client's model to match the client's label distribution.
    ``main.auc_even`` uses the test set without weights. A model that only recognises an example's client can have a
    high ``main.auc``, but has a ``main.auc_even`` of 0.5.

    Args:
        outputs: the outputs of each model for each test example, (K, M, C).
        assignment: the index of each client's model, (N,).
    """
    if federation.classes is None:
        return {}
    labels = federation.test.y.cpu()
    mix = torch.zeros(len(federation), federation.classes, dtype=torch.float64)
    clients = federation.clients
    mix.index_put_(
        (clients.owners(), clients.y.cpu()[clients.indices]), torch.ones(len(clients.indices)).double(), True
    )
    mix /= mix.sum(dim=1, keepdim=True)
    even = torch.bincount(labels, minlength=federation.classes).double() / len(labels)
    ratio = torch.where(even > 0, mix / even.clamp(min=1e-300), 0.0)[:, labels].numpy()
    models = np.unique(assignment)
    by_client = np.stack([ratio[assignment == k].sum(axis=0) for k in models])
    equal = np.stack([np.full(len(labels), float((assignment == k).sum())) for k in models])
    posteriors = outputs[models].softmax(dim=2).double().numpy()
    return {
        "main.auc": _one_against_rest(posteriors, labels.numpy(), by_client),
        "main.auc_even": _one_against_rest(posteriors, labels.numpy(), equal),
    }


def _one_against_rest(posteriors: Floats, labels: Ints, weights: Floats) -> float:
    """Return the mean AUC of each class against the others; for two classes, the second class's AUC."""
    models, classes = len(posteriors), posteriors.shape[2]
    truth, weight = np.tile(labels, models), weights.ravel()
    aucs = []
    for c in range(classes) if classes > 2 else [1]:
        used = weight > 0
        if len(np.unique(truth[used] == c)) == 2:
            score = posteriors[:, :, c].ravel()[used]
            aucs.append(roc_auc(score, truth[used] == c, weight[used]))
    return float(np.mean(aucs)) if aucs else nan
