"""scikit-learn's breast cancer data as a source, `breast_cancer:rows`, each column standardised."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer


def rows(_path: Path | None, _task: str | None) -> tuple[np.ndarray, np.ndarray]:
    """(569, 30) float32 and labels (569,)."""
    x, y = load_breast_cancer(return_X_y=True)
    return ((x - x.mean(axis=0)) / x.std(axis=0)).astype(np.float32), y
