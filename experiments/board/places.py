"""The table of a board: means over seeds with intervals, and places that close results share."""

from collections.abc import Mapping
from math import isnan, sqrt

import numpy as np
import pandas as pd
from scipy.special import stdtrit

from shoal.data.preferences import VIEWS

UTILITY = ("accuracy", "minority", "worst_client")
"""Columns where more is better."""

RISK = tuple(VIEWS)
"""Columns where less is better: AUC by view."""

OTHERS = ("canaries", "epsilon", "epsilon_low", "seconds", "megabytes")

_CONFIDENCE = 0.95


def standings(rows: pd.DataFrame, federation: str) -> pd.DataFrame:
    """The defences on one federation, the best place first.

    Args:
        rows: as of `board.measure`, of all defences.
        federation: its name.

    Returns:
        A row a defence: ``place``, ``defence``, ``seeds``, and for each column of `UTILITY` and `RISK` the mean and
        ``.half``, half its 95 % interval (Student's t over seeds); means of the others, of ``epsilon`` and its bound
        the largest.
    """
    own = rows[rows["federation"] == federation]
    groups = own.groupby("defence", sort=False)
    table = pd.DataFrame({"seeds": groups.size()})
    for column in (*UTILITY, *RISK):
        table[column] = groups[column].mean()
        table[f"{column}.half"] = groups[column].agg(_half)
    for column in OTHERS:
        table[column] = groups[column].max() if column.startswith("epsilon") else groups[column].mean()
    table.insert(0, "place", places(own))
    return table.reset_index().sort_values(["place", "accuracy"], ascending=[True, False], kind="stable")


def places(rows: pd.DataFrame) -> pd.Series:
    """The place of each defence on one federation: 1 and the number of defences that are clearly better.

    One is clearly better than another where no column of `UTILITY` and `RISK` is clearly worse and one is clearly
    better: the 95 % interval of the difference of the means (Welch's t) does not hold 0. Defences if none is
    clearly better than the other share a place, unless a third is better than one of them.
    """
    by_defence = {str(name): group for name, group in rows.groupby("defence", sort=False)}
    return pd.Series(
        {
            name: 1 + sum(_clearly_better(other, group) for other in by_defence.values() if other is not group)
            for name, group in by_defence.items()
        }
    )


def _clearly_better(a: pd.DataFrame, b: pd.DataFrame) -> bool:
    signs = [_sign(a[c], b[c]) for c in UTILITY] + [-_sign(a[c], b[c]) for c in RISK]
    return min(signs) >= 0 and max(signs) > 0


def _sign(a: pd.Series, b: pd.Series) -> int:
    """1 where the mean of ``a`` is clearly higher, -1 where it is clearly lower, else 0."""
    if min(len(a), len(b)) < 2:
        return 0
    # Rounding is not a difference.
    of_a, of_b = a.var(ddof=1) / len(a) + 1e-12, b.var(ddof=1) / len(b) + 1e-12
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    gap = float(a.mean() - b.mean())
    return int(np.sign(gap)) if abs(gap) > _quantile(freedom) * sqrt(of_a + of_b) else 0


def _half(values: pd.Series) -> float:
    return float("nan") if len(values) < 2 else _quantile(len(values) - 1) * values.std(ddof=1) / sqrt(len(values))


def _quantile(freedom: float) -> float:
    return float(stdtrit(freedom, 0.5 + _CONFIDENCE / 2))


def overview(tables: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """The place of each defence by federation, of the `standings`; the best mean place first."""
    table = pd.DataFrame({name: one.set_index("defence")["place"] for name, one in tables.items()})
    return table.loc[table.mean(axis=1).sort_values(kind="stable").index]


def markdown(tables: Mapping[str, pd.DataFrame]) -> str:
    """The places by federation, then the `standings` of each federation, by their names, in Markdown."""
    parts = [_overview_lines(overview(tables))]
    for federation, table in tables.items():
        lines = [
            f"**{federation}**\n",
            "| place | defence | accuracy | minority | worst client | outsider | client | server | canaries | epsilon "
            "(at least) | s | MB |",
            "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for row in table.to_dict("records"):
            measured = [_with_half(row[c], row[f"{c}.half"]) for c in (*UTILITY, *RISK)]
            stated, least = row["epsilon"], row["epsilon_low"]
            epsilon = ("none" if isnan(stated) else f"{stated:.1f}") + ("" if isnan(least) else f" ({least:.1f})")
            cells = [f"{row['place']}", row["defence"], *measured, _number(row["canaries"], 3), epsilon]
            lines.append("| " + " | ".join([*cells, f"{row['seconds']:.1f}", f"{row['megabytes']:.1f}"]) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _overview_lines(places_by_federation: pd.DataFrame) -> str:
    names = [str(name) for name in places_by_federation.columns]
    lines = [f"| defence | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for row in places_by_federation.reset_index(names="defence").to_dict("records"):
        cells = ["" if isnan(row[name]) else f"{row[name]:.0f}" for name in names]
        lines.append(f"| {row['defence']} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _with_half(mean: float, half: float) -> str:
    return _number(mean) if isnan(mean) or isnan(half) else f"{mean:.2f} ± {half:.2f}"


def _number(value: float, digits: int = 2) -> str:
    return "" if isnan(value) else f"{value:.{digits}f}"
