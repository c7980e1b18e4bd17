"""Results that a server knows without its clients' data: rows of ``rounds.csv``, keys of ``summary.json``, the page."""

import math
from math import isnan, nan

import pandas as pd
import torch

from shoal.core.formats import DASH, decimal
from shoal.engine import RoundPlan, State, Training
from shoal.reports.page import Section, render
from shoal.reports.table import ReportTable, heads, row
from shoal.simulation.round_metrics import RoundRow, directive_columns, group_means, metric_values, risk_columns


def round_rows(training: Training, state: State, plan: RoundPlan, *, evaluated: bool) -> tuple[RoundRow, ...]:
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


def summary_of(
    training: Training, state: State, rows: tuple[RoundRow, ...], counts: dict[str, int]
) -> dict[str, float]:
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


_KNOWN = (
    "This page is of a run on several machines, and shows what the server knows: the models on its own test set, the "
    "risk that it estimates, and what each client's node replied. It has seen no example of a client, and does not "
    "know what a client tolerates."
)


def deployment_page(rounds: pd.DataFrame, clients: pd.DataFrame, events: pd.DataFrame, config: str, title: str) -> str:
    """The page.

    Args:
        rounds: as in ``rounds.csv``: one row per round and cluster.
        clients: as in ``clients.csv``; without the clusters where they are not known.
        events: as in ``events.csv``; those of clients that were not merged.
        config: as TOML.
        title: of the page.
    """
    last = rounds[rounds["round"] == rounds["round"].max()]
    unmerged = events[events["kind"].isin(["rejected", "failed", "missed", "refused"])]
    # With secure aggregation nobody knows which clients these are.
    members = clients["cluster"].value_counts() if "cluster" in clients else last.set_index("cluster")["clients"]
    sizes = ", ".join(f"model {k} by {int(members.get(k, 0))}" for k in last["cluster"])
    verdict = (
        f"{int(rounds['round'].max())} rounds with {len(clients)} clients; trained last: {sizes}; "
        f"{len(unmerged)} replies were missing or not merged."
    )
    sections = (
        _section("models", "Models after the last round", last.drop(columns=["round"])),
        _section("clients", "Clients", clients.set_index("name").reset_index()),
        _section("events", "Replies that were missing or not merged", unmerged),
        _section("rounds", "Rounds", rounds),
        Section("config", "Configuration", code=config),
    )
    return render("page.html.j2", title, [("verdict", verdict), ("", _KNOWN)], (), sections, style="run")


def _section(name: str, title: str, frame: pd.DataFrame) -> Section:
    whole = [pd.api.types.is_integer_dtype(frame[column]) for column in frame]
    rows = (row(*map(_text, values, whole)) for values in frame.itertuples(index=False))
    first, *further = map(str, frame)
    return Section(name, title, table=ReportTable(heads([first], further), tuple(rows)))


def _text(value: object, whole: bool) -> str:
    if whole or not isinstance(value, float):
        return DASH if value is None else str(value)
    return DASH if math.isnan(value) else decimal(value)
