"""Times the rounds of a side and prints what came out as one line of JSON."""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

_LOADED = time.time()
_TICKS = os.sysconf("SC_CLK_TCK")


class Clock:
    """Stamps of one side's rounds; the first round is a warm-up and does not count.

    Args:
        began: `time.time()` when the process was asked for; None: when this module was loaded.
        cpu: CPU seconds used so far, by whatever processes the side computes in.
        warm_up: rounds not counted.
    """

    def __init__(self, began: float | None, cpu: Callable[[], float] = time.process_time, warm_up: int = 1) -> None:
        self._began = _LOADED if began is None else began
        self._cpu = cpu
        self._warm_up = warm_up
        self._stamps: list[float] = []
        self._used: list[float] = []
        self._busy: list[float] = []
        self.startup = 0.0

    def start(self) -> None:
        """Say that the first round begins now."""
        self.startup = time.time() - self._began
        self.lap()

    def lap(self) -> None:
        """Say that a round has ended."""
        self._stamps.append(time.perf_counter())
        self._used.append(self._cpu())
        self._busy.append(machine_cpu_seconds())

    @property
    def seconds(self) -> list[float]:
        """Wall time of each counted round."""
        stamps = self._stamps[self._warm_up :]
        return [after - before for before, after in pairwise(stamps)]

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds a counted round, user and system."""
        return (self._used[-1] - self._used[self._warm_up]) / len(self.seconds)

    @property
    def others(self) -> float:
        """Cores that other processes, and other machines on the same host, kept busy on average meanwhile.

        It says how far to trust the figures: kernels that share their work among threads wait at every step for the
        thread that was interrupted.
        """
        busy = self._busy[-1] - self._busy[self._warm_up] - (self._used[-1] - self._used[self._warm_up])
        # The machine's counter moves in ticks, and two of them may be ours.
        return max(0.0, (busy - 2 / _TICKS) / sum(self.seconds))


def tell(side: str, work: str, images: int, clock: Clock, peak_mib: float | None = None, **more: object) -> None:
    """Print the result: a side's name, its work, the images trained a round, and what ``clock`` measured."""
    print(
        json.dumps(
            {
                "side": side,
                "work": work,
                "images": images,
                "seconds": clock.seconds,
                "startup_seconds": clock.startup,
                "cpu_seconds_per_round": clock.cpu_seconds,
                "others_cores": clock.others,
                "peak_mib": own_peak_mib() if peak_mib is None else peak_mib,
                **more,
            }
        ),
        flush=True,
    )


def machine_cpu_seconds() -> float:
    """CPU seconds that the whole machine has spent since it started, stolen ones included; 0 but on Linux."""
    try:
        user, nice, system, _, _, irq, softirq, steal = Path("/proc/stat").read_text().split()[1:9]
    except OSError:
        return 0.0
    return sum(map(int, (user, nice, system, irq, softirq, steal))) / _TICKS


def own_peak_mib() -> float:
    """Peak resident memory of this process.

    Linux's own high-water mark where there is one: ``ru_maxrss`` also counts the process this one was forked from.
    """
    if Path("/proc/self/status").exists():
        return peak_mib(os.getpid())
    unit = 1024 * 1024 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def peak_mib(process: int) -> float:
    """Peak resident memory of one process, 0 if it has ended (Linux)."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)


def family() -> dict[int, float]:
    """CPU seconds, user and system, of this process and of all that descend from it and still run (Linux)."""
    parents, used = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
    members = {os.getpid()}
    grown = True
    while grown:
        found = {process for process, parent in parents.items() if parent in members}
        grown = not found <= members
        members |= found
    return {process: used.get(process, 0.0) for process in members}
