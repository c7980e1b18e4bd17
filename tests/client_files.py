"""Files of clients with examples of their own, for tests of runs: a table of clinics and a folder of pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def clinics(folder: Path, names: Sequence[str] = "abc") -> dict[str, Any]:
    """[data] of a table with three clinics in two groups, 8 rows each."""
    draw = np.random.default_rng(0)
    rows = [
        f"{names[i // 8]},{'north' if i < 8 else 'south'},{'ill' if i % 2 else 'well'},{draw.normal()},{draw.normal()}"
        for i in range(24)
    ]
    (folder / "t.csv").write_text("\n".join(["clinic,area,state,age,dose", *rows]))
    return {"source": "table", "path": str(folder / "t.csv"), "client": "clinic", "label": "state", "group": "area"}


def pictures(folder: Path) -> dict[str, Any]:
    """[data] of a folder with 8 pictures of 4 x 4 of each of three clients, in two classes."""
    images, draw = pytest.importorskip("PIL.Image"), np.random.default_rng(0)
    for i in range(24):
        path = folder / "pictures" / "abc"[i // 8] / ("cat" if i % 2 else "dog") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        images.fromarray(draw.integers(0, 256, (4, 4), dtype=np.uint8)).save(path)
    return {"source": "folder", "path": str(folder / "pictures"), "test_fraction": 0.5}
