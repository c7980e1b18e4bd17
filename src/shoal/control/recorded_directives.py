"""Directives of an earlier run of the same federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.engine import Engine, State, SteeringRule as EngineCoordinator, Tensors

DIRECTIVE_COLUMN = "directive."
"""Prefix of the names of `rounds.csv`'s columns with directives."""


@dataclass(frozen=True, eq=False)
class RecordedDirectives:
    """Coordinator that repeats recorded directives; implements the engine's protocol `SteeringRule`.

    Reference federations must train as the attacked one did. The server told every client these directives, so an
    attacker knows them.

    Args:
        coordinator: that of the attacked run, which gives the first directives.
        by_round: (K,) float64 of each directive, by the round after which it was given. Where a round is missing, or K
            differs, directives stay.
        stream: the root of the attacked run's random streams, by which its clients answered before the first round.

    Example:
        >>> import shoal
        >>> from shoal.control import RecordedDirectives
        >>> rows = [{"round": 5, "cluster": k, "directive.l2": k / 2} for k in (0, 1)]
        >>> coordinator = shoal.LimitController({"l2": shoal.Knob(shoal.L2(0.1))})
        >>> recorded = RecordedDirectives.from_rows(coordinator, rows, shoal.Stream(0))
        >>> recorded.by_round[5]["l2"]
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """

    coordinator: EngineCoordinator
    by_round: Mapping[int, Tensors]
    stream: Stream

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """The first directives of the attacked run, with its clients' answers."""
        return self.coordinator.start(state, federation, engine, self.stream("coordinator", 0))

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """The directives of the last round of ``state``."""
        recorded = self.by_round.get(state.round, {})
        same = {name: values for name, values in recorded.items() if len(values) == len(state.models)}
        return replace(state, directives={**state.directives, **same})

    @staticmethod
    def from_rows(
        coordinator: EngineCoordinator, rows: Sequence[Mapping[str, float]], stream: Stream
    ) -> "RecordedDirectives":
        """The directives in `rounds.csv`, one row per round and cluster, in order."""
        by_round: dict[int, list[Mapping[str, float]]] = {}
        for row in rows:
            by_round.setdefault(int(row["round"]), []).append(row)
        tensors = {
            number: {name: torch.tensor(values, dtype=torch.float64) for name, values in directives_of(some).items()}
            for number, some in by_round.items()
        }
        return RecordedDirectives(coordinator, tensors, stream)


def directives_of(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The directives (K,) by name in the rows of `rounds.csv` of one round, one per cluster, in order.

    Example:
        >>> from shoal.control import directives_of
        >>> directives_of([{"round": 1, "cluster": k, "directive.l2": k / 2} for k in (0, 1)])
        {'l2': [0.0, 0.5]}
    """
    names = [column for column in rows[0] if column.startswith(DIRECTIVE_COLUMN)] if rows else []
    return {name.removeprefix(DIRECTIVE_COLUMN): [row[name] for row in rows] for name in names}
