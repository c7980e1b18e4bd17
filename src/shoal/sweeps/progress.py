"""How far a sweep is, as its directory tells."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.runs.run import is_finished
from shoal.sweeps.plan import Planned


@dataclass(frozen=True)
class SweepProgress:
    """How far a sweep is.

    Args:
        runs: all of them.
        finished: how many are done, before and now.
        failed: how many failed now.
        done: the share of the work that is done, by rounds (of unfinished runs, by their checkpoints) and the images of
            a round.
    """

    runs: int
    finished: int
    failed: int
    done: float


def standing(planned: Sequence[Planned], runs: Path, failed: int) -> SweepProgress:
    """How far the ``planned`` runs in the folder ``runs`` are."""
    finished = sum(is_finished(runs / each.digest) for each in planned)
    done = sum(_work(each, _played(runs / each.digest, each.config.algorithm.rounds)) for each in planned)
    whole = sum(_work(each, each.config.algorithm.rounds) for each in planned)
    return SweepProgress(len(planned), finished, failed, done / whole)


def _work(planned: Planned, rounds: int) -> float:
    """Images that so many rounds of a run go through: how long they take, but for what is the same in all runs."""
    data = planned.config.data.partition
    return rounds * data.clients * data.examples_per_client * planned.config.algorithm.participation + rounds


def _played(out: Path, rounds: int) -> int:
    """Rounds that a run has done, as far as its directory tells."""
    if is_finished(out):
        return rounds
    done = [int(path.name.split("-")[1]) for path in (out / "checkpoint").glob("round-*.safetensors")]
    return max(done, default=0)
