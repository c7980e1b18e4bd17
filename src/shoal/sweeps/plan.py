"""The runs of a sweep, resolved, checked and named by a hash of what they compute.

The hash omits threads and checkpoints, because they only affect the speed.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shoal.config.build import load_source, reading_of, resolve
from shoal.config.schema import Config
from shoal.core.errors import InputError
from shoal.data import SourceData
from shoal.data.content import fingerprint
from shoal.data.user.own_files import Reading
from shoal.runs.directory import is_finished
from shoal.runs.files import decisive_settings
from shoal.sweeps.sweep_file import Sweep, SweepPoint

LOADED_DATASETS = 2
"""The number of data sets that a process keeps in memory; the largest takes 640 MB."""


@dataclass(frozen=True)
class PlannedRun:
    """A checked run that can be started.

    Args:
        digest: the name of the run's directory.
        examples: the number of training examples of all clients.
    """

    run: SweepPoint
    config: Config
    digest: str
    examples: int


def plan_runs(sweep: Sweep, data_dir: Path | None = None) -> tuple[PlannedRun, ...]:
    """Check every run of a sweep before the first run starts.

    Raises:
        InputError: a run's settings do not fit together, or two runs are the same.
    """
    return planned_runs(sweep.runs, sweep.name, data_dir)


def planned_runs(runs: Sequence[SweepPoint], name: str, data_dir: Path | None = None) -> tuple[PlannedRun, ...]:
    """Check ``runs`` before the first run starts; ``name`` is the prefix of error sentences.

    Raises:
        InputError: a run's settings do not fit together, or two runs are the same.
    """
    # The files may have changed since another sweep of this process.
    forget_datasets()
    planned: dict[str, PlannedRun] = {}
    for run in runs:
        try:
            resolved = resolve(run.config, dataset_of(run.config, data_dir), draft=True)
        except InputError as error:
            raise InputError(f"{name}, {run}: {error}") from error
        config = resolved.config
        # How files of clients' own examples are read is decided by now, and would look like another data set.
        _loaded_as[_key(config, data_dir)] = _key(run.config, data_dir)
        # Files of a path may be others by the next time; those of a named set are not.
        digest = digest_of(config, "" if config.data.path is None else _fingerprint_once(_key(run.config, data_dir)))
        if digest in planned:
            raise InputError(f"{name}: '{planned[digest].run}' and '{run}' are the same run; remove one of them")
        planned[digest] = PlannedRun(run, config, digest, int(resolved.simulation.federation.clients.sizes.sum()))
    return tuple(planned.values())


def dataset_of(config: Config, data_dir: Path | None) -> SourceData:
    """Return the data set of a configuration, loaded once per process.

    Raises:
        InputError: the data are missing or damaged.
    """
    key = _key(config, data_dir)
    return _load_once(_loaded_as.get(key, key))


_Key = tuple[str, str | None, str | None, Path | None, Reading | None]
"""The identity of a data set: the arguments of `load_source`."""

_loaded_as: dict[_Key, _Key] = {}
"""The keys of loaded data sets, by the keys of resolved configurations."""


def _key(config: Config, data_dir: Path | None) -> _Key:
    # A resolved configuration has an absolute path; the file may have another path to the same place.
    path = None if config.data.path is None else str(Path(config.data.path).expanduser().resolve())
    return config.data.source, path, config.data.task, data_dir, reading_of(config.data)


@lru_cache(maxsize=LOADED_DATASETS)
def _load_once(key: _Key) -> SourceData:
    return load_source(*key)


@lru_cache(maxsize=LOADED_DATASETS)
def _fingerprint_once(key: _Key) -> str:
    return fingerprint(_load_once(key))


def forget_datasets() -> None:
    """Free the memory of the data sets that `dataset_of` has loaded."""
    _load_once.cache_clear()
    _fingerprint_once.cache_clear()
    _loaded_as.clear()


def digest_of(config: Config, examples: str = "") -> str:
    """Hash a resolved configuration and the hash of its ``examples`` to 16 hexadecimal digits."""
    text = json.dumps(decisive_settings(config.table()), sort_keys=True) + examples
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep.

    Args:
        failed: the number of runs that failed since the start of this command.
        done: the finished fraction of the work, in [0, 1]. The work is the number of rounds, including reference
            federations' rounds, weighted by training examples.

    Example:
        >>> from shoal.sweeps import SweepProgress
        >>> SweepProgress(runs=4, finished=1, failed=0, done=0.4)
        SweepProgress(runs=4, finished=1, failed=0, done=0.4)
    """

    runs: int
    finished: int
    failed: int
    done: float


def progress_of(planned: Sequence[PlannedRun], runs: Path, failed: int) -> SweepProgress:
    """Return the progress of the ``planned`` runs in the folder ``runs``."""
    finished = sum(is_finished(runs / job.digest) for job in planned)
    done = sum(_work(job, _rounds_done(runs / job.digest, job.config)) for job in planned)
    total = sum(_work(job, _rounds_in_all(job.config)) for job in planned)
    return SweepProgress(len(planned), finished, failed, done / total)


def _work(planned: PlannedRun, rounds: int) -> float:
    """Return the number of examples in ``rounds`` rounds, plus one per round for a round's fixed cost."""
    return rounds * planned.examples * planned.config.algorithm.participation + rounds


def _rounds_in_all(config: Config) -> int:
    """Return the number of rounds of a run and its reference federations."""
    return config.algorithm.rounds * (1 + config.evaluation.reference_federations)


def _rounds_done(out: Path, config: Config) -> int:
    """Return the number of finished rounds of a run and its reference federations, from the run's directory."""
    if is_finished(out):
        return _rounds_in_all(config)
    done = [int(path.name.split("-")[1]) for path in (out / "checkpoint").glob("round-*.safetensors")]
    numbers = range(config.evaluation.reference_federations)
    references = sum((out / "references" / f"{number:03d}.safetensors").exists() for number in numbers)
    return max(done, default=0) + config.algorithm.rounds * references
