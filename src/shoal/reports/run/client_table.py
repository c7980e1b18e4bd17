"""The table of clients: who is over the limit, how far, and by which attack."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, isnan, nan

import pandas as pd

from shoal.core.formats import ACCURACY, DASH, count, decimal, metric_format, name_examples, percent
from shoal.reports.run.limits import EXCEEDED, UNCERTAIN, UNKNOWN, WITHIN_LIMIT, has_intervals, with_limits

ALL_ROWS = 200
"""The most clients of which all have a row; of more, only those over their limit."""

MOST_ROWS = 1000
"""The most rows of the table, so that a page of many clients stays small."""

WORDS = {EXCEEDED: "exceeded", UNCERTAIN: "above, not certain", WITHIN_LIMIT: "within", UNKNOWN: DASH}
"""What is said of a limit."""


@dataclass(frozen=True)
class Cell:
    """A cell: its text, and the number to sort by where it is a column of numbers (empty: undefined)."""

    text: str
    number: str | None = None


@dataclass(frozen=True)
class ClientTable:
    """Rows under column heads, the furthest over the limit first; ``note`` says what it shows and leaves out.

    Args:
        heads: each with whether its column holds numbers.
        sorted_by: the index of the column by which the rows are sorted.
        rows: each with whether the client's limit is exceeded.
    """

    heads: tuple[tuple[str, bool], ...]
    sorted_by: int
    rows: tuple[tuple[bool, tuple[Cell, ...]], ...]
    note: str


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "\N{MINUS SIGN}")


COLUMNS: tuple[tuple[str, str, Callable[[float], str] | None], ...] = (
    ("client", "client", "{:.0f}".format),
    ("name", "name", None),
    ("group", "group", None),
    ("cluster", "cluster", "{:.0f}".format),
    ("limit", "limit is", None),
    ("margin", "over by", _signed),
    ("threshold", "limit", decimal),
    ("exposure", "exposure", decimal),
    ("exposure_low", "exposure, low end", decimal),
    ("exposure_null_high", "95 % of tests at chance", decimal),
    ("attack", "attack", None),
    ("examples", "training images", count),
    ("accuracy", "accuracy", percent),
    ("loss", "loss", decimal),
    ("beta", "beta", decimal),
    ("epsilon", "epsilon", decimal),
)
"""The columns of the table: of the frame, their heads, and how numbers are written; None: text."""


def client_table(clients: pd.DataFrame, attack: str, kind: str = "images", metric: str = ACCURACY) -> ClientTable:
    """The table of the rows of clients.csv; ``attack`` is the configured attack's name, ``kind`` what examples are, and
    ``metric`` the run's.

    Without scripts its rows are sorted by how far the limit is exceeded.
    """
    known = with_limits(clients, attack)
    known = known.sort_values(["over", "margin", "client"], ascending=[False, False, True], na_position="last")
    over = known[known["limit"].isin([EXCEEDED, UNCERTAIN])]
    shown = (known if len(known) <= ALL_ROWS else over).head(MOST_ROWS)
    left_out = set() if known["exposure_low"].notna().any() else {"exposure_low"}
    measured = ("accuracy", metric, metric_format(metric))
    columns = [measured if each[0] == "accuracy" else each for each in COLUMNS]
    columns = [each for each in columns if each[0] in known and each[0] not in left_out]
    rows = [
        (str(row["limit"]) == EXCEEDED, tuple(_cell(row[name], name, form) for name, _, form in columns))
        for row in shown.to_dict("records")
    ]
    return ClientTable(
        heads=tuple((name_examples(head, kind), form is not None) for _, head, form in columns),
        sorted_by=[name for name, _, _ in columns].index("margin"),
        rows=tuple(rows),
        note=_note(clients, over, shown),
    )


def _cell(value: str | float | None, name: str, form: Callable[[float], str] | None) -> Cell:
    if form is None:
        return Cell(DASH if pd.isna(value) else WORDS[str(value)] if name == "limit" else str(value))
    number = nan if value is None else float(value)
    if isnan(number):
        return Cell(DASH, "")
    # As scripts write numbers: epsilon is infinite without noise.
    return Cell(form(number), repr(number)) if isfinite(number) else Cell("\N{INFINITY}", "Infinity")


def _note(clients: pd.DataFrame, over: pd.DataFrame, shown: pd.DataFrame) -> str:
    """How to read the table, and which clients it leaves out."""
    sentences = []
    if len(shown) < len(clients):
        which = f"the {len(over):,} that are over their limit" if len(over) else "none, as no limit is exceeded"
        some = f", of them the first {len(shown):,}" if len(shown) < len(over) else ""
        sentences.append(f"Of {len(clients):,} clients the table has {which}{some}; all are in clients.csv.")
    drawn = int(clients["threshold_drawn"].sum()) if "threshold_drawn" in clients else 0
    if drawn:
        sentences.append(f"The limits of {drawn:,} clients were drawn at random, since no client has set one.")
    if has_intervals(clients):
        sentences.append(
            "Exposure: the balanced accuracy of the attack that decides, on the most exposed model that the client "
            "trained lately; low end: of its 95 % interval; 95 % of tests at chance: what they give at most. A limit "
            "is exceeded where the low end is above it, and 'above, not certain' where only the exposure is, or the "
            "MIA accuracy of its model. Over by: low end less limit."
        )
    else:
        sentences.append(
            "Exposure: the configured attack's balanced accuracy on the client's model, a point estimate without an "
            "interval. Over by: exposure less limit."
        )
    return " ".join(sentences)
