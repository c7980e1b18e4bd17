"""Flower's programs on loopback are started by scripts beside the experiments, which the tests import too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments" / "federation"))
