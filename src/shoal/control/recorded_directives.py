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
    """

    given: EngineCoordinator
    by_round: Mapping[int, Tensors]

    def start(self, state: State, federation: Federation, engine: Engine) -> State:
        """As the attacked run's."""
        return self.given.start(state, federation, engine)

    def update(self, state: State, federation: Federation, engine: Engine, stream: Stream) -> State:
        """Those of the round that ``state`` has done."""
        del federation, engine, stream
        recorded = self.by_round.get(state.round, {})
        same = {name: values for name, values in recorded.items() if len(values) == len(state.models)}
        return replace(state, directives={**state.directives, **same})

    @staticmethod
    def of_rows(given: EngineCoordinator, rows: Sequence[Mapping[str, float]]) -> "RecordedDirectives":
        """Those in the rows of `rounds.csv`, which are one per round and cluster, in order."""
        by_round: dict[int, dict[str, list[float]]] = {}
        for row in rows:
            of_round = by_round.setdefault(int(row["round"]), {})
            for column, value in row.items():
                if column.startswith(COLUMN):
                    of_round.setdefault(column.removeprefix(COLUMN), []).append(value)
        tensors = {
            number: {name: torch.tensor(values, dtype=torch.float64) for name, values in of_round.items()}
            for number, of_round in by_round.items()
        }
        return RecordedDirectives(given, tensors)
