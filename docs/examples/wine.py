"""Two data sources of one table, scikit-learn's wine: to be partitioned, or with the client of every row."""

from pathlib import Path
from typing import Any

import pandas as pd
from sklearn.datasets import load_wine

WINE: Any = load_wine(as_frame=True)


def load(path: Path | None, task: str | None) -> tuple[pd.DataFrame, pd.Series]:
    """Inputs and labels, which are partitioned across clients: 178 wines, 13 measurements, 3 classes."""
    return WINE.data, WINE.target


def by_strength(path: Path | None, task: str | None) -> pd.DataFrame:
    """A table whose column ``cellar`` names the client of each wine; its keys are ``client`` and ``label``."""
    strength = pd.qcut(WINE.frame["alcohol"], 5, labels=False)
    return WINE.frame.assign(cellar="cellar " + strength.astype(str))
