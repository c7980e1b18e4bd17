"""The simulations that led to trained models, where one went on from another, as they are to be replayed; and the risks
that they published.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.control import RecordedDirectives
from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.data.swap_pairs import PairedRecords
from shoal.engine import Engine, LocalSGD, RiskEstimate, State, unknown_intervals
from shoal.simulation.round_metrics import RoundRow
from shoal.simulation.simulation import Simulation, WarmStart, require_known


@dataclass(frozen=True, eq=False)
class RecordedRisks:
    """Gives each round's risks from a record; implements the engine's protocol `RiskEstimator`.

    For reference federations: the server told every client these risks, so an attacker knows them, and clients that
    weigh risk choose as they did in the attacked run. Nothing is trained for it.

    Args:
        every: rounds from one estimate to the next; 0: never.
        by_round: (K,) float64 of each round with an estimate. Where a round is missing, or K differs, risks stay.

    Example:
        >>> from shoal.replay.stages import RecordedRisks
        >>> table = [(5, 0, 0.5), (5, 1, 0.55), (10, 0, 0.5), (10, 1, 0.6)]
        >>> rows = [dict(zip(("round", "cluster", "risk"), row)) for row in table]
        >>> recorded = RecordedRisks.from_rows(5, rows)
        >>> {number: risks.tolist() for number, risks in recorded.by_round.items()}
        {5: [0.5, 0.55], 10: [0.5, 0.6]}
    """

    every: int
    by_round: Mapping[int, Tensor]

    def estimate(
        self, state: State, federation: Federation, engine: Engine, local: tuple[LocalSGD, ...], stream: Stream
    ) -> RiskEstimate:
        """Return the recorded risks of the round that ``state`` has done, with unknown intervals."""
        del federation, engine, local, stream
        recorded = self.by_round.get(state.round, state.risks)
        risks = recorded if recorded.shape == state.risks.shape else state.risks
        return RiskEstimate(risks, unknown_intervals(len(risks)))

    @staticmethod
    def from_rows(every: int, rows: Sequence[Mapping[str, float]]) -> "RecordedRisks":
        """Risks in the rows of `rounds.csv`, one row per round and cluster, in order."""
        by_round: dict[int, list[float]] = {}
        for row in rows:
            by_round.setdefault(int(row["round"]), []).append(row["risk"])
        return RecordedRisks(every, {k: torch.tensor(v, dtype=torch.float64) for k, v in by_round.items()})


@dataclass(frozen=True, eq=False)
class ChainLink:
    """A simulation that led to attacked models: the attacked one, or one that it continued.

    Args:
        simulation: the simulation to be replayed.
        engine: the engine of that simulation; None: the attacked run's.
        risks, directives: see `AttackedRun`.
        records: the attacked pairs as the simulation's clients have them.
        pair: (E,) int64, the index of each of these pairs among the Q attacked pairs.
    """

    simulation: Simulation
    engine: Engine | None
    risks: RecordedRisks
    directives: RecordedDirectives | None
    records: PairedRecords
    pair: Tensor


def warm_start_chain(simulation: Simulation, records: PairedRecords) -> list[ChainLink]:
    """List the simulations before the ``start`` of ``simulation``, the first one first, for its attacked ``records``.

    Raises:
        InputError: the training of the start is unknown.
    """
    require_known(simulation)
    stages = []
    for start in starts_before(simulation):
        assert start.simulation is not None
        located, pair = records.locate_in(start.simulation.federation)
        stages.append(
            ChainLink(start.simulation, start.engine, *recorded_rules(start.simulation, start.rows), located, pair)
        )
    return stages


def starts_before(simulation: Simulation) -> list[WarmStart]:
    """Return the starts of ``simulation``, the first one first; from models that are public on nothing is replayed."""
    start = simulation.start
    if start is None or start.public:
        return []
    return [start] if start.simulation is None else [*starts_before(start.simulation), start]


def recorded_rules(simulation: Simulation, rows: Sequence[RoundRow]) -> tuple[RecordedRisks, RecordedDirectives | None]:
    """Return the published risks and the coordinator's directives of a simulation, from the rows of rounds.csv."""
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
