"""Directives that were given in an earlier run of the same federation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from shoal.core.randomness import Stream
from shoal.data.federation import Federation
from shoal.engine import Coordinator as EngineCoordinator
from shoal.engine import Engine, State, Tensors

COLUMN = "directive."
"""What the names of the columns of `rounds.csv` with directives begin with."""


@dataclass(frozen=True, eq=False)
class RecordedDirectives:
    """Gives each round's directives from a record; implements the engine's protocol `Coordinator`.

    For reference federations, which must train as the attacked one did: the server told every client these directives,
    so an attacker knows them.

    Args:
        given: the coordinator of the attacked run, which gives the first directives.
        by_round: (K,) float64 of each directive, by the round after which it was given. Where a round is missing, or K
            is another, directives stay.
        stream: the root of the attacked run's random streams, by which its clients answered before the first round.

    Example:
        >>> import shoal
        >>> from shoal.control import RecordedDirectives
        >>> rows = [{"round": 5, "cluster": k, "directive.l2": k / 2} for k in (0, 1)]
        >>> given = shoal.Coordinator({"l2": shoal.Knob(shoal.L2(0.1))})
        >>> recorded = RecordedDirectives.of_rows(given, rows, shoal.Stream(0))
        >>> recorded.by_round[5]["l2"]
        tensor([0.0000, 0.5000], dtype=torch.float64)
    """

    given: EngineCoordinator
    by_round: Mapping[int, Tensors]
    stream: Stream

    def start(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """As the attacked run's, with the answers of then."""
        del stream
        return self.given.start(state, federation, engine, self.stream("coordinator", 0))

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Those of the round that ``state`` has done."""
        del federation, engine, stream
        recorded = self.by_round.get(state.round, {})
        same = {name: values for name, values in recorded.items() if len(values) == len(state.models)}
        return replace(state, directives={**state.directives, **same})

    @staticmethod
    def of_rows(given: EngineCoordinator, rows: Sequence[Mapping[str, float]], stream: Stream) -> "RecordedDirectives":
        """Those in the rows of `rounds.csv`, which are one per round and cluster, in order."""
        by_round: dict[int, list[Mapping[str, float]]] = {}
        for row in rows:
            by_round.setdefault(int(row["round"]), []).append(row)
        tensors = {
            number: {name: torch.tensor(given, dtype=torch.float64) for name, given in directives_of(some).items()}
            for number, some in by_round.items()
        }
        return RecordedDirectives(given, tensors, stream)


def directives_of(rows: Sequence[Mapping[str, float]]) -> dict[str, list[float]]:
    """The directives (K,) by name in the rows of `rounds.csv` of one round, which are one per cluster, in order.

    Example:
        >>> from shoal.control import directives_of
        >>> directives_of([{"round": 1, "cluster": k, "directive.l2": k / 2} for k in (0, 1)])
        {'l2': [0.0, 0.5]}
    """
    names = [column for column in rows[0] if column.startswith(COLUMN)] if rows else []
    return {name.removeprefix(COLUMN): [row[name] for row in rows] for name in names}
