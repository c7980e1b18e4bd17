"""A sweep's runs with everything decided, each named by what it runs, so that no run is done twice."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from shoal.config.build import decide, images_of
from shoal.config.schema import Config
from shoal.core.errors import InputError
from shoal.data import LabelledDataset
from shoal.sweeps.spec import Run, Sweep

FAST = {"engine": {"threads"}, "checkpoint": True}
"""What only decides how fast a run goes, and has no part in its name."""


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
    images: dict[tuple[str | None, ...], LabelledDataset] = {}
    planned: dict[str, Planned] = {}
    for run in sweep.runs:
        where = run.config.data.source, run.config.data.path, run.config.data.task
        try:
            if where not in images:
                images[where] = images_of(run.config, data_dir)
            config = decide(run.config, images[where])
        except InputError as error:
            raise InputError(f"{sweep.name}, {run}: {error}") from error
        digest = digest_of(config)
        if digest in planned:
            raise InputError(f"{sweep.name}: '{planned[digest].run}' and '{run}' are the same run; leave one out")
        planned[digest] = Planned(run, config, digest)
    return tuple(planned.values())


def digest_of(config: Config) -> str:
    """64 bits that name a decided configuration, but for what only decides how fast it goes."""
    text = json.dumps(config.model_dump(exclude=FAST, exclude_none=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
