"""The cores that this process may use."""

import math
import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")


def cores() -> int:
    """Cores that this process may use: those of its affinity, and no more than its control groups have time for.

    A container with a quota of 1.5 cores on a machine with 64 has 2.
    """
    counted = getattr(os, "process_cpu_count", None)  # Of Python 3.13.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min((counted() if counted is not None else allowed) or 1, _quota()))


def _quota(groups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Cores for which the control groups (version 2) of this process have time; those above it count too."""
    try:
        name = next(line for line in own.read_text().splitlines() if line.startswith("0::"))[3:]
    except (OSError, StopIteration):
        return os.cpu_count() or 1
    # A group outside what this container sees has a name that begins with "..".
    folder = groups if ".." in name else groups / name.lstrip("/")
    limits = [_cores_of(above / "cpu.max") for above in (folder, *folder.parents) if above.is_relative_to(groups)]
    return min(filter(None, limits), default=os.cpu_count() or 1)


def _cores_of(file: Path) -> int | None:
    """The cores of a cpu.max, which has microseconds and a period, rounded up; None: it names no limit."""
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return None
