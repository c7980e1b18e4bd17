"""Figures of one run of a sweep that its summary has not: over clients, those of exposure and of cluster sizes."""

from pathlib import Path

from shoal.runs.files import read_table
from shoal.simulation.measure import CLIENT_COLUMNS

LIMITS = (0.5, 0.8)
"""What clients tolerate in the bar's federation: the range of `privacy.thresholds`."""


def of_clients(run: Path, limits: tuple[float, float] = LIMITS) -> dict[str, float]:
    """From `clients.csv` of the directory of a run.

    Returns:
        exposure: by the strongest attack, mean over clients.
        worst: that of the most exposed client.
        expected: violations expected of limits uniform between the two given.
        smallest: clients of the smallest model in use.
    """
    clients = read_table(run / "clients.csv", CLIENT_COLUMNS)
    exposure = clients["exposure"]
    return {
        "exposure": exposure.mean(),
        "worst": exposure.max(),
        "expected": ((exposure - limits[0]) / (limits[1] - limits[0])).clip(0, 1).sum(),
        "smallest": float(clients["cluster"].value_counts().min()),
    }
