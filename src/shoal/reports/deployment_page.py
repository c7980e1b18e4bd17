"""The page of a run on several machines: models, clients, and what happened to them, as the server knows it."""

import math
from typing import Any

import pandas as pd

from shoal.core.formats import DASH, decimal
from shoal.reports.html import render


def deployment_page(rounds: pd.DataFrame, clients: pd.DataFrame, events: pd.DataFrame, config: str, title: str) -> str:
    """The page.

    Args:
        rounds: as in ``rounds.csv``: one row per round and cluster.
        clients: as in ``clients.csv``.
        events: as in ``events.csv``; those of clients that were not merged.
        config: as TOML.
        title: of the page.
    """
    last = rounds[rounds["round"] == rounds["round"].max()]
    unmerged = events[events["kind"].isin(["rejected", "failed", "missed", "refused"])]
    sizes = ", ".join(f"model {k} by {int((clients['cluster'] == k).sum())}" for k in last["cluster"])
    verdict = (
        f"{int(rounds['round'].max())} rounds with {len(clients)} clients; trained last: {sizes}; "
        f"{len(unmerged)} replies were missing or not merged."
    )
    tables = [
        _table("models", "Models after the last round", last.drop(columns=["round"])),
        _table("clients", "Clients", clients.set_index("name").reset_index()),
        _table("events", "Replies that were missing or not merged", unmerged),
        _table("rounds", "Rounds", rounds),
    ]
    return render("deployment.html.j2", {"title": title, "verdict": verdict, "tables": tables, "config": config})


def _table(name: str, title: str, frame: pd.DataFrame) -> dict[str, Any]:
    """What the template shows of a frame."""
    whole = {column: pd.api.types.is_integer_dtype(frame[column]) for column in frame}
    rows = [
        [_cell(value, whole=whole[column]) for column, value in zip(frame.columns, row, strict=True)]
        for row in frame.itertuples(index=False)
    ]
    return {"id": name, "title": title, "heads": [str(each) for each in frame.columns], "rows": rows}


def _cell(value: object, *, whole: bool) -> str:
    if whole or not isinstance(value, float):
        return DASH if value is None else str(value)
    return DASH if math.isnan(value) else decimal(value)
