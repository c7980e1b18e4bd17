"""Courses over rounds: a line a model, ordered by how many clients chose it at the end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pandas as pd

from shoal.reports.frames import Floats, by_cluster, column
from shoal.reports.sweep.figure_data import Scene
from shoal.reports.sweep.seed_statistics import need_keys
from shoal.reports.sweep.spec import Value

Ranked = Mapping[str, Floats]
"""Columns of rounds.csv, each (models, rounds): the model that most clients chose in the last round is the first."""


@dataclass(frozen=True)
class Courses:
    """One panel.

    Args:
        key: the column of rounds.csv.
        by: the setting of `by`.
        rounds: (rounds,) those in which it was measured.
        values: (seeds, models, rounds), NaN where a seed has none.
    """

    key: str
    by: Value | None
    rounds: Floats
    values: Floats

    @property
    def n(self) -> np.ndarray:
        """(models, rounds) how many seeds have a value."""
        return (~np.isnan(self.values)).sum(axis=0)


def ranked(rounds: pd.DataFrame, keys: Sequence[str], played: Floats) -> Ranked:
    """The courses of a run's models in the rounds ``played``, the largest model first.

    Models of one size in the last round are ordered by earlier rounds, then by ``keys``; never by their number.
    """
    models = []
    for _, own in by_cluster(rounds):
        at = np.searchsorted(played, column(own, "round"))
        found = {}
        for key in ("clients", *keys):
            found[key] = np.full(len(played), np.nan)
            found[key][at] = column(own, key)
        models.append(found)
    models.sort(key=lambda found: [tuple(np.nan_to_num(found[key][::-1], nan=-np.inf)) for key in ("clients", *keys)])
    return {key: np.stack([found[key] for found in reversed(models)]) for key in keys}


def courses_of(scene: Scene, courses: Callable[[str], pd.DataFrame]) -> list[Courses]:
    """(keys x settings of `by`) the panels, in that order.

    Raises:
        InputError: no run has one of the columns.
    """
    places = {by: scene.outcomes.rows(scene.place(None, by)) for by in scene.settings(scene.asked.by)}
    used = sorted({row for seeds in places.values() for rows in seeds for row in rows if row is not None})
    runs = scene.outcomes.results.get("run", pd.Series(dtype=str)).astype(str).tolist()
    frames = {row: courses(runs[row]) for row in used}
    if runs:
        # Runs that the figure does not show may have what none of its own has; then it shows gaps.
        looked = chain(frames.values(), (courses(run) for row, run in enumerate(runs) if row not in frames))
        need_keys(scene.asked.y, looked, ("round", "cluster"), "no run's rounds.csv has the column")
    played = np.unique(np.concatenate([column(frame, "round") for frame in frames.values()] or [np.zeros(0)]))
    models = {row: ranked(frame, scene.asked.y, played) for row, frame in frames.items()}
    panels = []
    for key in scene.asked.y:
        for by, seeds in places.items():
            most = max((len(models[row][key]) for rows in seeds for row in rows if row is not None), default=1)
            shape = (most, len(played))
            values = np.stack(
                [_average([None if row is None else models[row] for row in rows], key, shape) for rows in seeds]
            )
            measured = ~np.isnan(values).all(axis=(0, 1))
            panels.append(Courses(key, by, played[measured], values[:, :, measured]))
    return panels


def _average(runs: Sequence[Ranked | None], key: str, shape: tuple[int, int]) -> Floats:
    """(models, rounds) of one seed; NaN where one of the runs averaged over has no value."""
    values = np.full((len(runs), *shape), np.nan)
    for i, run in enumerate(runs):
        if run is not None:
            values[i, : len(run[key])] = run[key]
    return values.mean(axis=0)


def models_named(count: int) -> list[str]:
    """Names of so many models from the largest to the smallest.

    >>> models_named(1), models_named(2), models_named(3)
    (['the model'], ['larger model', 'smaller model'], ['model 1 (largest)', 'model 2', 'model 3 (smallest)'])
    """
    if count <= 2:
        return ["the model"] if count == 1 else ["larger model", "smaller model"]
    return ["model 1 (largest)", *(f"model {i}" for i in range(2, count)), f"model {count} (smallest)"]
