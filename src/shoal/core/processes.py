"""Work by joblib in this process, in several processes of this machine, or on a Ray cluster."""

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
    """The parallel processes that train runs or reference federations.

    Args:
        jobs: the number of parallel processes.
        cluster: the address of a Ray cluster, or "auto" for this machine's cluster; ``None`` uses this machine. All
            machines of the cluster need the directories and the data at the same paths.

    Raises:
        InputError: the number of jobs is below 1, or Ray is not installed.
    """

    jobs: int = 1
    cluster: str | None = None

    def __post_init__(self) -> None:
        require(self.jobs >= 1, f"'--jobs' must be at least 1 (got {self.jobs})")
        require(
            self.cluster is None or importlib.util.find_spec("ray") is not None,
            "'--cluster' needs Ray; run pip install 'shoal[ray]'",
        )

    def at_most(self, items: int) -> "Workers":
        """Return workers with the number of jobs limited to ``items``."""
        return Workers(max(1, min(self.jobs, items)), self.cluster)

    @property
    def here(self) -> bool:
        """Whether one process does all work sequentially."""
        return self.jobs == 1 and self.cluster is None

    @property
    def threads(self) -> int:
        """The number of threads per process, which divides the available cores among the jobs."""
        return max(1, cores() // self.jobs)

    def unordered(
        self, work: Callable[[_Shared, _Item], _Result], shared: _Shared, items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """Yield ``work(shared, item)`` for every item, in any order; a cluster yields after all items are complete.

        Args:
            work: a function at the top level of a module.
            shared: the first argument of ``work``, sent to each process once.
            items: the second arguments of ``work``, which should be small.

        Raises:
            ShoalError: a process was killed, or no cluster answers.
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
                "a worker process was killed, perhaps because memory ran out; rerun the command to resume, with fewer "
                "'--jobs' if necessary"
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
                raise InputError(f"'--cluster': no Ray cluster answers (got {self.cluster}): {reason}") from error
        register_ray()
        stored = ray.put(shared)
        results: Any = Parallel(n_jobs=self.jobs, backend="ray")(
            delayed(_work_on_cluster)(work, stored, item) for item in items
        )
        return results


SEQUENTIAL = Workers()
"""Sequential work in this process."""


@dataclass(frozen=True)
class Workplace(Generic[_Watch]):
    """The directories, workers and progress display of long work.

    Args:
        out: the directory of output files.
        workers: the parallel processes, which do not change results.
        data_dir: the first directory to search for data.
        watch: the observer of progress; ``None`` reports no progress.
    """

    out: Path
    workers: Workers = SEQUENTIAL
    data_dir: Path | None = None
    watch: _Watch | None = None


_begun: tuple[Callable[[Any, Any], Any], Any]
"""The function and its shared argument in a worker process."""


def _begin(parent: int, work: Callable[[Any, Any], Any], shared: object) -> None:
    """Prepare a worker process, which ends after the process ``parent``."""
    global _begun  # noqa: PLW0603 (a process does one kind of work)
    # Searches for reference cycles take 0.9 s while a process loads PyTorch (measured).
    gc.set_threshold(10_000, 10, 10)
    threading.Thread(target=_end_with, args=(parent,), name="shoal parent", daemon=True).start()
    _begun = work, shared


def _end_with(parent: int) -> None:
    """End this process after ``parent``, because joblib would otherwise begin the next item."""
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
    """Return the number of cores that this process may use, by its affinity and the quotas of its control groups.

    A quota of 1.5 cores counts as 2 cores.
    """
    counted = getattr(os, "process_cpu_count", None)  # Of Python 3.13.
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min((counted() if counted is not None else allowed) or 1, _quota()))


def _quota(groups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The number of cores that this process's control groups (version 2) and their parents allow."""
    try:
        name = next(line for line in own.read_text().splitlines() if line.startswith("0::"))[3:]
    except (OSError, StopIteration):
        return os.cpu_count() or 1
    # A group outside what this container sees has a name that begins with "..".
    folder = groups if ".." in name else groups / name.lstrip("/")
    limits = [_cores_of(above / "cpu.max") for above in (folder, *folder.parents) if above.is_relative_to(groups)]
    return min(filter(None, limits), default=os.cpu_count() or 1)


def _cores_of(file: Path) -> int | None:
    """The number of cores that a cpu.max file allows (quota / period, rounded up); None without a limit."""
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else max(1, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return None
