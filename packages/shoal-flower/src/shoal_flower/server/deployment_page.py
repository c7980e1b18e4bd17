"""The page of a run on several machines: models, clients, and what happened to them, as the server knows it."""

import math

import pandas as pd

from shoal.core.formats import DASH, decimal
from shoal.reports.page import Section, render
from shoal.reports.table import Table, heads, row

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
    return Section(name, title, table=Table(heads([first], further), tuple(rows)))


def _text(value: object, whole: bool) -> str:
    if whole or not isinstance(value, float):
        return DASH if value is None else str(value)
    return DASH if math.isnan(value) else decimal(value)
