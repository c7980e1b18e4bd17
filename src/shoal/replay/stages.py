"""The chain of simulations that led to trained models through warm starts, and the risks that each simulation
published.
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
    """A record of each round's risks, used as the engine's `RiskEstimator`.

    Clients of a reference federation choose by the risks that the attacked run published.

    Args:
        every: the number of rounds from one estimate to the next; 0 for no estimates.
        by_round: the risks of each round with an estimate, (K,) float64. A round that is missing or has a different
            number of models keeps the earlier risks.

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
        """Return the recorded risks of the last round in ``state``, without confidence intervals."""
        del federation, engine, local, stream
        recorded = self.by_round.get(state.round, state.risks)
        risks = recorded if recorded.shape == state.risks.shape else state.risks
        return RiskEstimate(risks, unknown_intervals(len(risks)))

    @staticmethod
    def from_rows(every: int, rows: Sequence[Mapping[str, float]]) -> "RecordedRisks":
        """Read the risks from the rows of `rounds.csv`, one row per round and cluster, in order."""
        by_round: dict[int, list[float]] = {}
        for row in rows:
            by_round.setdefault(int(row["round"]), []).append(row["risk"])
        return RecordedRisks(every, {k: torch.tensor(v, dtype=torch.float64) for k, v in by_round.items()})


@dataclass(frozen=True, eq=False)
class ChainLink:
    """A simulation that led to attacked models: the attacked simulation, or one of its predecessors.

    Args:
        risks, directives: see `AttackedRun`.
        records: the attacked pairs, by their positions in this simulation's federation.
        pair: the index of each pair of ``records`` among the Q attacked pairs, (E,) int64.
    """

    simulation: Simulation
    engine: Engine | None
    risks: RecordedRisks
    directives: RecordedDirectives | None
    records: PairedRecords
    pair: Tensor


def warm_start_chain(simulation: Simulation, records: PairedRecords) -> list[ChainLink]:
    """List the simulations before the ``start`` of ``simulation``, in training order.

    Raises:
        InputError: the training of a warm start is unknown.
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
    """List the warm starts of ``simulation`` in training order, after the last start from public models."""
    start = simulation.start
    if start is None or start.public:
        return []
    return [start] if start.simulation is None else [*starts_before(start.simulation), start]


def recorded_rules(simulation: Simulation, rows: Sequence[RoundRow]) -> tuple[RecordedRisks, RecordedDirectives | None]:
    """Return the published risks and the coordinator's directives of a simulation, from the rows of `rounds.csv`."""
    coordinator, risks = simulation.coordinator, RecordedRisks.from_rows(simulation.red_team.every, rows)
    return risks, None if coordinator is None else RecordedDirectives.from_rows(
        coordinator, rows, Stream(simulation.seed)
    )


@contextmanager
def matching_engine(asked: Engine | None, engine: Engine) -> Iterator[Engine]:
    """Yield ``engine`` if ``asked`` is None or has the same settings; otherwise reopen and yield ``asked``."""
    settings = ("model", "device", "dtype", "backend")
    if asked is None or all(getattr(asked, name) == getattr(engine, name) for name in settings):
        yield engine
    else:
        with asked.reopened() as other:
            yield other
