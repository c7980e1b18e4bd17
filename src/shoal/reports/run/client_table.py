"""The table of clients: who is over the limit, how far, and by which attack."""

from collections.abc import Callable
from math import isfinite, isnan, nan

import pandas as pd

from shoal.core.formats import DASH, count, decimal, metric_format, name_examples, percent
from shoal.reports.run.run_view import EXCEEDED, UNCERTAIN, UNKNOWN, WITHIN_LIMIT, RunView
from shoal.reports.table import Cell, Column, Row, Table

ALL_ROWS = 200
"""The most clients of which all have a row; of more, only those over their limit."""

MOST_ROWS = 1000
"""The most rows of the table, so that a page of many clients stays small."""

WORDS = {EXCEEDED: "exceeded", UNCERTAIN: "above, not certain", WITHIN_LIMIT: "within", UNKNOWN: DASH}
"""What is said of a limit."""


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


COLUMNS: dict[str, tuple[str, Callable[[float], str] | None]] = {
    "client": ("client", "{:.0f}".format),
    "name": ("name", None),
    "group": ("group", None),
    "cluster": ("cluster", "{:.0f}".format),
    "limit": ("limit is", None),
    "margin": ("over by", _signed),
    "threshold": ("limit", decimal),
    "exposure": ("exposure", decimal),
    "exposure_low": ("exposure, low end", decimal),
    "exposure_null_high": ("at chance, at most", decimal),
    "attack": ("attack", None),
    "view": ("view", None),
    "examples": ("training images", count),
    "accuracy": ("accuracy", percent),
    "loss": ("loss", decimal),
    "beta": ("beta", decimal),
    "epsilon": ("epsilon", decimal),
}
"""The columns of the frame that are shown, their heads, and how numbers are written; None: text."""


def client_table(view: RunView) -> Table:
    """The clients, the furthest over the limit first; its caption says what it leaves out and how to read it."""
    clients, metric = view.clients, view.run.metric
    clients = clients.sort_values(["over", "margin", "client"], ascending=[False, False, True], na_position="last")
    over = clients[clients["limit"].isin([EXCEEDED, UNCERTAIN])]
    shown = (clients if len(clients) <= ALL_ROWS else over).head(MOST_ROWS)
    measured = COLUMNS | {"accuracy": (metric, metric_format(metric))}
    columns = {name: column for name, column in measured.items() if name in clients}
    rows = []
    for client in shown.to_dict("records"):
        cells = tuple(_cell(client[name], name, form) for name, (_, form) in columns.items())
        rows.append(Row(cells, "over" if client["limit"] == EXCEEDED else ""))
    kind, caption = view.run.kind, _note(clients, over, shown)
    heads = tuple(Column(name_examples(head, kind), number=form is not None) for head, form in columns.values())
    return Table(heads, tuple(rows), "Clients", caption, stubs=0, sorted_by=[*columns].index("margin"))


def _cell(value: str | float | None, name: str, form: Callable[[float], str] | None) -> Cell:
    if form is None:
        return Cell(DASH if pd.isna(value) else WORDS[str(value)] if name == "limit" else str(value))
    number = nan if value is None else float(value)
    if isnan(number):
        return Cell(DASH)
    # As scripts write numbers: epsilon is infinite without noise.
    return Cell(form(number), sort=repr(number)) if isfinite(number) else Cell("\N{INFINITY}", sort="Infinity")


def _note(clients: pd.DataFrame, over: pd.DataFrame, shown: pd.DataFrame) -> str:
    """How to read the table, and which clients it leaves out."""
    sentences = []
    if len(shown) < len(clients):
        rest = f"the {len(over):,} that are over their limit" if len(over) else "none, as no limit is exceeded"
        part = f", of them the first {len(shown):,}" if len(shown) < len(over) else ""
        sentences.append(f"Of {len(clients):,} clients the table has {rest}{part}; all are in clients.csv.")
    drawn = int(clients["threshold_drawn"].sum()) if "threshold_drawn" in clients else 0
    if drawn:
        sentences.append(f"The limits of {drawn:,} clients were drawn at random, since no client has set one.")
    if "view" in clients:
        sentences.append("View: the attacker that the client's limit, its exposure and what is said of both are about.")
    sentences.append(
        "Exposure: the balanced accuracy of the attack that decides, on the most exposed model that the client "
        "trained lately; low end: of its 95 % interval; at chance, at most: in 95 % of tests. A limit "
        "is exceeded where the low end is above it, and 'above, not certain' where only the exposure is, or the "
        "MIA accuracy of its model. Over by: low end less limit."
    )
    return " ".join(sentences)
