"""How far a sweep is, read from its directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.config.schema import Config
from shoal.runs.directory import is_finished
from shoal.sweeps.plan import PlannedRun


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is.

    Args:
        runs: all of them.
        finished: how many are done, before and now.
        failed: how many failed now.
        done: the share of the work that is done, in [0, 1]: rounds (of an unfinished run, those up to its last
            checkpoint, and those of its reference federations), each weighted by its training examples.

    Example:
        >>> from shoal.sweeps import SweepProgress
        >>> progress = SweepProgress(runs=10, finished=6, failed=1, done=0.75)
        >>> progress.runs - progress.finished - progress.failed, f"{progress.done:.0%}"
        (3, '75%')
    """

    runs: int
    finished: int
    failed: int
    done: float


def progress_of(planned: Sequence[PlannedRun], runs: Path, failed: int) -> SweepProgress:
    """How far the ``planned`` runs in the folder ``runs`` are."""
    finished = sum(is_finished(runs / each.digest) for each in planned)
    done = sum(_work(each, _rounds_done(runs / each.digest, each.config)) for each in planned)
    whole = sum(_work(each, _rounds_in_all(each.config)) for each in planned)
    return SweepProgress(len(planned), finished, failed, done / whole)


def _work(planned: PlannedRun, rounds: int) -> float:
    """The examples that ``rounds`` rounds of a run go through, and one more per round, for what every round costs."""
    return rounds * planned.examples * planned.config.algorithm.participation + rounds


def _rounds_in_all(config: Config) -> int:
    """The rounds of a run, and those of its reference federations."""
    return config.algorithm.rounds * (1 + config.evaluation.reference_federations)


def _rounds_done(out: Path, config: Config) -> int:
    """The rounds of a run and its reference federations that its directory shows to be done."""
    if is_finished(out):
        return _rounds_in_all(config)
    done = [int(path.name.split("-")[1]) for path in (out / "checkpoint").glob("round-*.safetensors")]
    numbers = range(config.evaluation.reference_federations)
    references = sum((out / "references" / f"{number:03d}.safetensors").exists() for number in numbers)
    return max(done, default=0) + config.algorithm.rounds * references
