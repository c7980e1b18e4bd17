"""A CSV file that grows by a row at a time, so that a script that was stopped goes on."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd


def add_missing_rows(
    path: Path, keys: Sequence[str], places: Iterable[tuple[Any, ...]], row_of: Callable[..., dict[str, Any] | None]
) -> pd.DataFrame:
    """The rows of the file at ``path`` after ``row_of(*place)`` was added for each place that has none.

    A place has a value for each of ``keys``, which each row names. A row is written as soon as it is there; where
    ``row_of`` returns None the place stays without. What was done, and the time left, is printed.
    """
    rows = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=list(keys))
    done = set(rows[list(keys)].itertuples(index=False, name=None))
    todo = [place for place in places if place not in done]
    began = time.perf_counter()
    for number, place in enumerate(todo, 1):
        row = row_of(*place)
        if row is not None:
            rows = pd.concat([rows, pd.DataFrame([row])], ignore_index=True)
            rows.to_csv(path, index=False)
        left = (time.perf_counter() - began) / number * (len(todo) - number)
        said = " ".join(map(str, place)) + (": failed" if row is None else "")
        print(f"{said}; {number} of {len(todo)}; about {left / 60:.0f} min left", flush=True)
    return rows
