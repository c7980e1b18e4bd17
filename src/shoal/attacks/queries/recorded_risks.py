"""Risks that were published in an earlier run of the same federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.engine import Engine, LocalSGD, RiskEstimate, State, unknown_intervals


@dataclass(frozen=True, eq=False)
class RecordedRisks:
    """Gives each round's risks from a record; implements the engine's protocol `RiskEstimator`.

    For reference federations: the server told every client these risks, so an attacker knows them, and clients that
    weigh risk choose as they did in the attacked run. Nothing is trained for it.

    Args:
        every: rounds from one estimate to the next; 0: never.
        by_round: (K,) float64 of each round with an estimate. Where a round is missing, or K is another, risks stay.

    Example:
        >>> from shoal.attacks import RecordedRisks
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
        """The recorded risks of the round that ``state`` has done, with unknown intervals."""
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
