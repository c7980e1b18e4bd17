"""Work side by side: in this process, in processes of this machine, or on a Ray cluster, through joblib."""

import gc
import importlib.util
import math
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError

from shoal.core.errors import InputError, ShoalError, require

_Shared = TypeVar("_Shared")
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_Watch = TypeVar("_Watch")


@dataclass(frozen=True)
class Workers:
    """The processes among which runs or reference federations are shared out.

    Args:
        jobs: how many are done at a time.
        cluster: address of a Ray cluster ("auto": the one that this machine belongs to); None: this machine. The
            directories and the data must be at the same paths on all its machines.

    Raises:
        InputError: fewer than one job, or a cluster without Ray being installed.
    """

    jobs: int = 1
    cluster: str | None = None

    def __post_init__(self) -> None:
        require(self.jobs >= 1, f"'--jobs' must be at least 1; got {self.jobs}")
        require(
            self.cluster is None or importlib.util.find_spec("ray") is not None,
            "'--cluster' needs Ray; install the extra: pip install 'shoal[ray]'",
        )

    def at_most(self, items: int) -> "Workers":
        """No more than ``items`` of them: each further one would load all of Shoal for nothing."""
        return Workers(max(1, min(self.jobs, items)), self.cluster)

    @property
    def here(self) -> bool:
        """Whether this process does the work, one item after another."""
        return self.jobs == 1 and self.cluster is None

    @property
    def threads(self) -> int:
        """The threads of each process, since those of several would only wait for each other."""
        return max(1, cores() // self.jobs)

    def unordered(
        self, work: Callable[[_Shared, _Item], _Result], shared: _Shared, items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """``work(shared, item)`` of every item, as each ends; on a cluster when all have ended.

        Args:
            work: a function of a module.
            shared: the same for all items, which is sent to each process once.
            items: small ones.

        Raises:
            ShoalError: a process was ended from outside, or no cluster answers.
        """
        if self.here:
            yield from (work(shared, item) for item in items)
            return
        if self.cluster is not None:
            yield from self._on_cluster(work, shared, items)
            return
        parallel: Any = Parallel(
            n_jobs=self.jobs,
            backend="loky",
            return_as="generator_unordered",
            initializer=_begin,
            initargs=(os.getpid(), work, shared),
        )
        results = parallel(delayed(_work)(item) for item in items)
        try:
            for result in results:  # noqa: UP028 (closed below)
                yield result
        except TerminatedWorkerError as error:
            raise ShoalError(
                "a worker process was ended from outside, perhaps for want of memory; what is done is kept, so start "
                "again, perhaps with fewer '--jobs'"
            ) from error
        finally:
            with warnings.catch_warnings():
                # Whoever stops here knows that work is left.
                warnings.filterwarnings("ignore", message=".*cancelled")
                results.close()

    def _on_cluster(
        self, work: Callable[[_Shared, _Item], _Result], shared: _Shared, items: Sequence[_Item]
    ) -> list[_Result]:
        import ray  # noqa: PLC0415 (an extra)
        from ray.util.joblib import register_ray  # noqa: PLC0415

        if not ray.is_initialized():
            try:
                ray.init(address=self.cluster, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(f"'--cluster' = {self.cluster}: no Ray cluster answers there: {reason}") from error
        register_ray()
        stored = ray.put(shared)
        results: Any = Parallel(n_jobs=self.jobs, backend="ray")(
            delayed(_work_on_cluster)(work, stored, item) for item in items
        )
        return results


SEQUENTIAL = Workers()
"""This process does one item after another."""


@dataclass(frozen=True)
class Workplace(Generic[_Watch]):
    """The place of long work.

    Args:
        out: directory of its files.
        workers: the processes that share it; results are the same.
        data_dir: where to look for data first.
        watch: told of its progress; None: nobody is.
    """

    out: Path
    workers: Workers = SEQUENTIAL
    data_dir: Path | None = None
    watch: _Watch | None = None


_begun: tuple[Callable[[Any, Any], Any], Any]
"""In a worker process: the work, and what is shared."""


def _begin(parent: int, work: Callable[[Any, Any], Any], shared: object) -> None:
    """Begin a worker process, which ends when its ``parent``, a process id, has ended."""
    global _begun  # noqa: PLW0603 (a process does one kind of work)
    # Searches for reference cycles take 0.9 s while a process loads PyTorch (measured).
    gc.set_threshold(10_000, 10, 10)
    threading.Thread(target=_end_with, args=(parent,), name="shoal parent", daemon=True).start()
    _begun = work, shared


def _end_with(parent: int) -> None:
    """End this process once ``parent`` has: joblib would begin the next item although nobody waits for it."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _work(item: object) -> object:
    work, shared = _begun
    return work(shared, item)


def _work_on_cluster(work: Callable[[Any, Any], Any], stored: Any, item: object) -> object:  # noqa: ANN401 (a reference of Ray)
    import ray  # noqa: PLC0415 (an extra)

    return work(ray.get(stored), item)


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
