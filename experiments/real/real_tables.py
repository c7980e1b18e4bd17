"""Shoal's five real tables as the CSV files of this experiment, with a 0/1 label and two groups each.

A table without a column of groups gets the groups "small" and "large" by the number of a client's rows, which its
operator knows: the third of the clients with the fewest rows are small. Rows with an empty cell are left out.
"""

from dataclasses import replace
from pathlib import Path

import pandas as pd

from shoal.data.sources.named_tables import NAMED_TABLES, NamedTable

TABLES = {name: NAMED_TABLES[name] for name in ("azprocedure", "aids2", "star", "hsb82", "chem97")} | {
    "star": replace(NAMED_TABLES["star"], inputs=("cltype", "ses", "sx", "eth", "exp", "hdeg")),
    "chem97": replace(NAMED_TABLES["chem97"], client="lea", label="high"),
}
"""By name, the fastest first. Of `star` one grade is used, since a pupil is in several."""

POSITIVE = (1, "D", "yes")
"""The values of a label that are 1."""


def frame(name: str, about: NamedTable | None = None) -> pd.DataFrame:
    """The columns client, group, label and inputs of all rows without an empty cell, by what is known ``about`` it."""
    about = about or TABLES[name]
    table, _ = about.read(name)
    if about.rows is not None:
        column, *values = about.rows
        table = table[table[column].astype(str).isin(values)]
    table = table[table[[about.client, *about.inputs]].notna().all(axis=1)]
    client = table[about.client].astype(str)
    group = _by_size(client) if about.group is None else table[about.group].astype(str)
    columns = {"client": client, "group": group, "label": table[about.label].isin(POSITIVE).astype(int)}
    return pd.DataFrame(columns).join(table[list(about.inputs)])


def _by_size(client: pd.Series) -> pd.Series:
    rows = client.value_counts(ascending=True, sort=True)
    small = set(rows.sort_index().sort_values(kind="stable").index[: len(rows) // 3 or 1])
    return client.map(lambda name: "small" if name in small else "large")


def write_table(name: str, path: Path) -> Path:
    """Write the CSV file of a federation, unless it is there."""
    if not path.exists():
        frame(name).to_csv(path, index=False)
    return path
