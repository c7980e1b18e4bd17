"""Courses over rounds of what a property attack found, and which points of many to draw."""

from bisect import bisect_left, bisect_right, insort

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from shoal.reports.frames import Bools, Floats, column, rows

GOLDEN = 0.6180339887498949
"""Multiples of it, without their whole part, are spread evenly and keep no time with any period of rounds."""


def running_auc(rounds: Floats, present: Bools, scores: Floats) -> tuple[Floats, Floats]:
    """The AUC of all updates up to a round, for each round from the first by which there were both kinds.

    Args:
        rounds: (R,) of each update, in any order.
        present: (R,) whether the property is in it.
        scores: (R,) NaN where there is none.

    Returns:
        Rounds and AUCs, both (T,); T is 0 where one kind never occurs.

    >>> over, aucs = running_auc(np.array([1.0, 2, 3]), np.array([True, False, False]), np.array([0.5, 0.5, 0.1]))
    >>> over.tolist(), aucs.tolist()
    ([2.0, 3.0], [0.5, 0.75])
    """
    known = np.flatnonzero(~np.isnan(scores))
    order = known[np.argsort(rounds[known], kind="stable")]
    kinds: tuple[list[float], list[float]] = [], []
    right, found = 0.0, {}
    for number, held, score in zip(
        rounds[order].tolist(), present[order].tolist(), scores[order].tolist(), strict=True
    ):
        others = kinds[not held]
        below, through = bisect_left(others, score), bisect_right(others, score)
        right += (below if held else len(others) - through) + (through - below) / 2
        insort(kinds[held], score)
        if kinds[0] and kinds[1]:
            found[number] = right / (len(kinds[0]) * len(kinds[1]))
    return np.array(list(found)), np.array(list(found.values()))


def of_control(updates: pd.DataFrame) -> tuple[Floats, Floats]:
    """`running_auc` of forests that learned from shuffled labels, in the mean."""
    present = column(updates, "present") > 0
    names = [str(name) for name in updates if str(name).startswith("control.")]
    found = [running_auc(column(updates, "round"), present, column(updates, name)) for name in names]
    known = [(over, aucs) for over, aucs in found if len(over)]
    if not known:
        return np.array([]), np.array([])
    return known[0][0], np.mean([aucs for _, aucs in known], axis=0)


def half_window(rounds: float) -> int:
    """Rounds to either side over which `rolling_mean` goes in a training of so many."""
    return max(2, int(rounds) // 50)


def rolling_mean(rounds: Floats, values: Floats, half: int) -> Floats:
    """(R,) the mean of the known values at most ``half`` rounds away; NaN where there are none.

    >>> rolling_mean(np.array([1.0, 2, 3, 9]), np.array([0.0, 1, np.nan, np.nan]), 1).tolist()
    [0.5, 0.5, 1.0, nan]
    """
    order = np.argsort(rounds, kind="stable")
    sorted_rounds, sorted_values = rounds[order], values[order]
    first = np.searchsorted(sorted_rounds, sorted_rounds - half, side="left")
    last = np.searchsorted(sorted_rounds, sorted_rounds + half, side="right")
    known = np.concatenate([[0], np.cumsum(~np.isnan(sorted_values))])
    total = np.concatenate([[0.0], np.cumsum(np.nan_to_num(sorted_values))])
    number = known[last] - known[first]
    means = np.full(len(values), np.nan)
    means[order] = np.divide(total[last] - total[first], number, out=means[order], where=number > 0)
    return means


def spread(values: Floats) -> tuple[float, float]:
    """Mean and standard deviation of the known values; NaN where there are too few of them."""
    known = values[~np.isnan(values)]
    mean = float(known.mean()) if len(known) else float("nan")
    return mean, float(known.std(ddof=1)) if len(known) > 1 else float("nan")


def early_and_all(updates: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The maps that there are: which rounds, and the updates with places, as columns ``x`` and ``y``."""
    found = []
    for name, title in (("early", "first fifth of the rounds"), ("all", "all rounds")):
        placed = updates.assign(x=column(updates, f"{name}_x"), y=column(updates, f"{name}_y"))
        placed = rows(placed, ~np.isnan(column(placed, "x") + column(placed, "y")))
        if len(placed):
            found.append((title, placed))
    return found


def drawn_of(count: int, share: float) -> NDArray[np.int64]:
    """Which of so many points are drawn where only about a share of them is, spread evenly.

    >>> drawn_of(3, 1.0).tolist(), len(drawn_of(5000, 0.02))
    ([0, 1, 2], 101)
    """
    return np.flatnonzero((np.arange(count) * GOLDEN) % 1 < share)
