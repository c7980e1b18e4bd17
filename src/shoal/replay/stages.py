"""The simulations that led to trained models, where one went on from another, as they are to be replayed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from shoal.attacks import RecordedRisks
from shoal.control import RecordedDirectives
from shoal.core.randomness import Stream
from shoal.data.paired_records import PairedRecords
from shoal.engine import Engine
from shoal.simulation.round_metrics import Row
from shoal.simulation.simulation import Simulation, Start, require_known


@dataclass(frozen=True, eq=False)
class Stage:
    """A simulation that led to attacked models: the attacked one, or one that it went on from.

    Args:
        simulation: to be replayed.
        engine: that computed it; None: that of the attacked run.
        risks, directives: as of `AttackedRun`.
        records: the attacked pairs as its clients have them.
        pair: (E,) int64, which of the Q attacked pairs each of them is.
    """

    simulation: Simulation
    engine: Engine | None
    risks: RecordedRisks
    directives: RecordedDirectives | None
    records: PairedRecords
    pair: Tensor


def stages_before(simulation: Simulation, records: PairedRecords) -> list[Stage]:
    """The simulations that ``simulation``, whose ``records`` are attacked, went on from, the first one first.

    Raises:
        InputError: it went on from models of which it is not known how they were trained.
    """
    require_known(simulation)
    stages = []
    for start in starts_before(simulation):
        assert start.simulation is not None
        located, pair = records.located_in(start.simulation.federation)
        stages.append(Stage(start.simulation, start.engine, *recorded(start.simulation, start.rows), located, pair))
    return stages


def starts_before(simulation: Simulation) -> list[Start]:
    """The starts of ``simulation``, the first one first; from models that are public on nothing is replayed."""
    start = simulation.start
    if start is None or start.public:
        return []
    return [start] if start.simulation is None else [*starts_before(start.simulation), start]


def recorded(simulation: Simulation, rows: Sequence[Row]) -> tuple[RecordedRisks, RecordedDirectives | None]:
    """The risks that a simulation published and, with a coordinator, its directives, by the rows of rounds.csv."""
    coordinator, risks = simulation.coordinator, RecordedRisks.from_rows(simulation.red_team.every, rows)
    return risks, None if coordinator is None else RecordedDirectives.from_rows(
        coordinator, rows, Stream(simulation.seed)
    )


@contextmanager
def matching_engine(asked: Engine | None, engine: Engine) -> Iterator[Engine]:
    """``engine`` where it computes as the one that is ``asked`` for, perhaps closed; else that one, opened again."""
    settings = ("model", "device", "dtype", "backend")
    if asked is None or all(getattr(asked, name) == getattr(engine, name) for name in settings):
        yield engine
    else:
        with asked.reopened() as other:
            yield other
