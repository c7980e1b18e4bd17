"""The runs of a sweep, done by worker processes."""

import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from shoal.config.schema import Config
from shoal.core.atomic_files import write_text
from shoal.core.errors import InputError
from shoal.core.processes import IN_TURN, Workers
from shoal.runs.result import report_of
from shoal.runs.run import run
from shoal.simulation.play import Watch
from shoal.sweeps.plan import PlannedRun, dataset_of, forget_datasets


@dataclass(frozen=True)
class _Place:
    """Where runs are done.

    Args:
        runs: the folder of their directories.
        data_dir: where to look for data first.
        pages: whether each run gets its page, which takes a second.
        references: what trains a run's reference federations: all workers, where there is one run for them.
    """

    runs: Path
    data_dir: Path | None
    pages: bool
    references: Workers = IN_TURN


def run_all(
    planned: Sequence[PlannedRun], runs: Path, workers: Workers, data_dir: Path | None = None, *, pages: bool = True
) -> Iterator[tuple[str, str | None]]:
    """Do the runs in the folder ``runs``; yields each one's digest as it ends, and the reason if it failed."""
    asked, workers, place = workers, workers.at_most(len(planned)), _Place(runs, data_dir, pages)
    items = [(job.config, job.digest) for job in planned]
    if not workers.here:
        # The workers load their own.
        forget_datasets()
        place = _Place(runs.resolve(), None if data_dir is None else data_dir.resolve(), pages)
        items = [(_threads(config, workers.threads), digest) for config, digest in items]
    elif len(planned) == 1:
        place = replace(place, references=asked)
    yield from workers.unordered(_run_of, place, items)


def _run_of(place: _Place, item: tuple[Config, str]) -> tuple[str, str | None]:
    return run_one(*item, place.runs, place.data_dir, pages=place.pages, references=place.references)


def run_one(
    config: Config,
    digest: str,
    runs: Path,
    data_dir: Path | None,
    watch: Watch | None = None,
    *,
    pages: bool = True,
    references: Workers = IN_TURN,
) -> tuple[str, str | None]:
    """Do or finish one run in ``runs``/``digest``, and its page; returns the digest, and the reason if it failed.

    A lock keeps two processes out of one run, such as a worker whose sweep was killed and the next sweep's.
    """
    out = runs / digest
    with FileLock(runs / f".{digest}.lock"):
        try:
            run(config, out, resume=out.exists(), dataset=dataset_of(config, data_dir), watch=watch, workers=references)
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


def _threads(config: Config, most: int) -> Config:
    return replace(config, engine=replace(config.engine, threads=min(config.engine.threads or most, most)))
