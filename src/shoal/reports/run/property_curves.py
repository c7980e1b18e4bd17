"""Series over rounds of a property attack, and the updates with t-SNE coordinates."""

import numpy as np
import pandas as pd

from shoal.simulation.property_metrics import auc

CHECKPOINTS = 100
"""Rounds at which an AUC over rounds is computed; a figure is about 400 pixels wide."""


def by_cluster(updates: pd.DataFrame) -> dict[int, pd.DataFrame]:
    """The updates of each model."""
    return {k: updates[updates["cluster"] == k] for k in np.unique(updates["cluster"]).tolist()}


def running_auc(updates: pd.DataFrame, score: str = "score") -> pd.Series:
    """The AUC of all updates up to a round, by round; empty where one kind of updates never occurs.

    It begins with the first round by which there are both kinds, and has at most `CHECKPOINTS` values.

    Args:
        updates: the rows of property.csv, in any order.
        score: the column to judge.

    >>> frame = pd.DataFrame({"round": [1, 2, 3], "present": [1, 0, 0], "score": [0.5, 0.5, 0.1]})
    >>> running_auc(frame).to_dict()
    {2: 0.5, 3: 0.75}
    """
    known = updates.dropna(subset=[score]) if score in updates else updates.head(0)
    begins = known.groupby("present")["round"].min()
    if len(begins) < 2:
        return pd.Series(dtype=float)
    rounds = np.unique(known["round"])
    rounds = rounds[rounds >= begins.max()]
    some = np.unique(np.linspace(0, len(rounds) - 1, CHECKPOINTS).round().astype(int))
    past = {number: known[known["round"] <= number] for number in rounds[some].tolist()}
    return pd.Series({n: auc(each["present"].to_numpy(bool), each[score].to_numpy()) for n, each in past.items()})


def control_auc_over_rounds(updates: pd.DataFrame) -> pd.Series:
    """The mean of `running_auc` over the classifiers that learned from shuffled labels."""
    controls = [running_auc(updates, name) for name in updates.columns if name.startswith("control.")]
    return pd.concat(controls, axis=1).mean(axis=1) if controls else pd.Series(dtype=float)


def half_window(rounds: int) -> int:
    """Rounds to either side that `rolling_mean` takes, in a training of so many."""
    return max(2, rounds // 50)


def rolling_mean(values: pd.Series, half: int) -> pd.Series:
    """The mean of the values, by round, at most ``half`` rounds away; NaN where there are none.

    >>> rolling_mean(pd.Series({1: 0.0, 2: 1.0, 3: None, 9: None}), 1).tolist()
    [0.5, 0.5, 1.0, nan]
    """
    every = values.astype(float).reindex(range(values.index.min(), values.index.max() + 1))
    return every.rolling(2 * half + 1, center=True, min_periods=1).mean()[values.index]


def tsne_maps(updates: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The updates that have t-SNE coordinates, as columns ``x`` and ``y``, by the rounds that the map is of."""
    maps = {}
    for name, title in (("early", "first fifth of the rounds"), ("all", "all rounds")):
        coordinates = {f"{name}_x": "x", f"{name}_y": "y"}
        if set(coordinates) <= set(updates):
            points = updates.dropna(subset=list(coordinates)).rename(columns=coordinates)
            maps |= {title: points} if len(points) else {}
    return maps
