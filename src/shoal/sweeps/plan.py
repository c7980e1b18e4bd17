"""A sweep's runs with everything decided, each named by what it runs, so that no run is done twice."""

import hashlib
import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from shoal.config.build import decide
from shoal.config.schema import Config
from shoal.core.errors import InputError
from shoal.data import LabelledDataset, load_dataset
from shoal.sweeps.spec import Run, Sweep

FAST = {"engine": {"threads"}, "checkpoint": True}
"""What only decides how fast a run goes, and has no part in its name."""

LOADED_DATASETS = 2
"""Data sets that a process keeps in memory. Most sweeps have one, and the largest takes 640 MB."""


@dataclass(frozen=True)
class PlannedRun:
    """A run that can be started.

    Args:
        run: its place in the sweep.
        config: what it runs, with everything decided.
        digest: the name of its directory.
    """

    run: Run
    config: Config
    digest: str


def plan_runs(sweep: Sweep, data_dir: Path | None = None) -> tuple[PlannedRun, ...]:
    """Check every run before any is started.

    Raises:
        InputError: a run that cannot be, or two runs that would be the same.
    """
    # The files may have changed since another sweep of this process.
    forget_datasets()
    planned: dict[str, PlannedRun] = {}
    for run in sweep.runs:
        try:
            config = decide(run.config, dataset_of(run.config, data_dir))
        except InputError as error:
            raise InputError(f"{sweep.name}, {run}: {error}") from error
        digest = digest_of(config)
        if digest in planned:
            raise InputError(f"{sweep.name}: '{planned[digest].run}' and '{run}' are the same run; leave one out")
        planned[digest] = PlannedRun(run, config, digest)
    return tuple(planned.values())


def dataset_of(config: Config, data_dir: Path | None) -> LabelledDataset:
    """The data set of a configuration, loaded once for all runs that a process does on it.

    Raises:
        InputError: data that are missing or damaged.
    """
    # A decided configuration has the absolute path, the file's own may have another that leads to the same place.
    path = None if config.data.path is None else Path(config.data.path).expanduser().resolve()
    return _load_once(config.data.source, path, config.data.task, data_dir)


@lru_cache(maxsize=LOADED_DATASETS)
def _load_once(source: str, path: Path | None, task: str | None, data_dir: Path | None) -> LabelledDataset:
    return load_dataset(source, data_dir=data_dir, path=path, task=task)


def forget_datasets() -> None:
    """Free the memory of the data sets that `dataset_of` has loaded."""
    _load_once.cache_clear()


def digest_of(config: Config) -> str:
    """64 bits that name a decided configuration, but for what only decides how fast it goes."""
    text = json.dumps(config.model_dump(exclude=FAST, exclude_none=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
