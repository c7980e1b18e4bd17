"""A sweep's runs with everything decided, each named by what it runs, so that no run is done twice."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from shoal.config.build import load_data, resolve
from shoal.config.schema import Config
from shoal.core.errors import InputError
from shoal.data import LabelledDataset
from shoal.sweeps.spec import Run, Sweep


@dataclass(frozen=True)
class Planned:
    """A run that can be started.

    Args:
        run: its place in the sweep.
        config: what it runs, with everything decided.
        digest: the name of its directory.
    """

    run: Run
    config: Config
    digest: str


def plan(sweep: Sweep, data_dir: Path | None = None) -> tuple[Planned, ...]:
    """Check every run before any is started.

    Raises:
        InputError: a run that cannot be, or two runs that would be the same.
    """
    # Loaded once for all runs on the same data.
    loaded: dict[tuple[str | None, ...], LabelledDataset] = {}
    planned: dict[str, Planned] = {}
    for run in sweep.runs:
        where = run.config.data.source, run.config.data.path, run.config.data.task
        try:
            if where not in loaded:
                loaded[where] = load_data(run.config.data, data_dir)
            config = resolve(run.config, loaded[where]).config
        except InputError as error:
            raise InputError(f"{sweep.name}, {run}: {error}") from error
        digest = digest_of(config)
        if digest in planned:
            raise InputError(f"{sweep.name}: '{planned[digest].run}' and '{run}' are the same run; leave one out")
        planned[digest] = Planned(run, config, digest)
    return tuple(planned.values())


def digest_of(config: Config) -> str:
    """64 bits that name a resolved configuration, but for the keys that only decide how fast a run goes."""
    table = config.table()
    del table["engine"]["threads"], table["checkpoint"]
    text = json.dumps(table, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
