"""Runs side by side: in this process, in processes of this machine, or on a Ray cluster, through joblib."""

import gc
import importlib.util
import os
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from filelock import FileLock
from joblib import Parallel, delayed

from shoal.config.schema import Config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError, require
from shoal.core.machine import cores
from shoal.replay.reference_store import AuditWatch
from shoal.runs.result import report_of
from shoal.runs.run import run
from shoal.simulation.simulation import Watch
from shoal.sweeps.plan import PlannedRun, dataset_of, forget_datasets


@dataclass(frozen=True)
class Workers:
    """The processes that do the runs of a sweep.

    Args:
        jobs: runs at a time.
        cluster: address of a Ray cluster ("auto": the one that this machine belongs to); None: this machine. The
            sweep's directory and the data must be at the same paths on all its machines.
        pages: whether each run gets its page, which takes a second.

    Raises:
        InputError: fewer than one job, or a cluster without Ray being installed.
    """

    jobs: int = 1
    cluster: str | None = None
    pages: bool = True

    def __post_init__(self) -> None:
        require(self.jobs >= 1, f"'--jobs' must be at least 1; got {self.jobs}")
        require(
            self.cluster is None or importlib.util.find_spec("ray") is not None,
            "'--cluster' needs Ray; install the extra: pip install 'shoal[ray]'",
        )

    def run_all(
        self, planned: Sequence[PlannedRun], runs: Path, data_dir: Path | None
    ) -> Iterator[tuple[str, str | None]]:
        """Do the runs in the folder ``runs``; yields each one's digest as it ends, and the reason if it failed."""
        if not planned:
            return
        # More workers than runs would load all of Shoal for nothing.
        jobs = min(self.jobs, len(planned))
        if jobs == 1 and self.cluster is None:
            for job in planned:
                yield run_one(job.config, job.digest, runs, data_dir, pages=self.pages)
            return
        # The workers load their own.
        forget_datasets()
        # Threads of several runs would only wait for each other.
        share = max(1, cores() // jobs)
        where = None if data_dir is None else data_dir.resolve()
        # Ray ends its workers itself.
        parent = os.getpid() if self.cluster is None else None
        calls = [
            delayed(run_one_for_parent)(
                parent, _threads(job.config, share), job.digest, runs.resolve(), where, pages=self.pages
            )
            for job in planned
        ]
        # joblib's Ray backend returns results only when all are there.
        results = "generator_unordered" if self.cluster is None else "list"
        # Searches for reference cycles take 0.9 s while a process loads PyTorch (measured). Ray's are not ours to set.
        first: dict[str, Any] = {}
        if self.cluster is None:
            first = {"initializer": gc.set_threshold, "initargs": (10_000, 10, 10)}
        ended: Any = Parallel(n_jobs=jobs, backend=self._backend(), return_as=results, **first)(calls)
        yield from ended

    def _backend(self) -> str:
        """The name of joblib's backend, ready to be used."""
        if self.cluster is None:
            return "loky"
        import ray  # noqa: PLC0415 (an extra)
        from ray.util.joblib import register_ray  # noqa: PLC0415

        if not ray.is_initialized():
            try:
                ray.init(address=self.cluster, log_to_driver=False)
            except (ConnectionError, ValueError, RuntimeError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(f"'--cluster' = {self.cluster}: no Ray cluster answers there: {reason}") from error
        register_ray()
        return "ray"


def run_one(
    config: Config,
    digest: str,
    runs: Path,
    data_dir: Path | None,
    watch: Watch | None = None,
    watch_references: AuditWatch | None = None,
    *,
    pages: bool = True,
) -> tuple[str, str | None]:
    """Do or finish one run in ``runs``/``digest``, and its page; returns the digest, and the reason if it failed.

    A lock keeps two processes out of one run, such as a worker whose sweep was killed and the next sweep's.
    """
    out = runs / digest
    with FileLock(runs / f".{digest}.lock"):
        try:
            run(
                config,
                out,
                resume=out.exists(),
                dataset=dataset_of(config, data_dir),
                watch=watch,
                watch_references=watch_references,
            )
            if pages:
                report_of(out, allow_code=True)
        except InputError as error:
            foreign = out.exists() and not (out / "config.toml").exists()
            return digest, f"{error}; or remove {out} to do the run again" if foreign else str(error)
        except Exception as error:
            # The other runs go on.
            write_text(runs / f"{digest}.error.txt", traceback.format_exc())
            return digest, f"{type(error).__name__}: {error}"
    (runs / f"{digest}.error.txt").unlink(missing_ok=True)
    return digest, None


def run_one_for_parent(
    parent: int | None, config: Config, digest: str, runs: Path, data_dir: Path | None, *, pages: bool = True
) -> tuple[str, str | None]:
    """`run_one` in a worker process, which ends after a round when its ``parent``, a process id, has ended; or after a
    reference federation.
    """

    def end_without_parent(*_: object) -> None:
        if parent is not None and os.getppid() != parent:
            raise SystemExit(1)

    try:
        ended = run_one(config, digest, runs, data_dir, end_without_parent, end_without_parent, pages=pages)
    except SystemExit:
        # joblib would catch the exception, and start the next run although nobody waits for it.
        os._exit(1)
    if parent is not None and os.getppid() != parent:
        # The sweep was killed after this run's last round: joblib would wait for another run for minutes.
        os._exit(1)
    return ended


def _threads(config: Config, most: int) -> Config:
    return replace(config, engine=replace(config.engine, threads=min(config.engine.threads or most, most)))
