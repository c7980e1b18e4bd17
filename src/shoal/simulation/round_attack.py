"""The protocol of an attack that observes every round, such as property inference (`shoal.property`)."""

from collections.abc import Mapping
from typing import ClassVar, Protocol, runtime_checkable

import pandas as pd

from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Algorithm, RoundReport, State, Tensors, Training
from shoal.metrics.summary import Summary


@runtime_checkable
class RoundAttack(Protocol):
    """An attack that observes each round of a training, and is measured after the last. It changes no bit of training.

    It is a value: what it remembers from one round to the next are tensors, kept in checkpoints.
    """

    name: ClassVar[str]
    """Name of its table ``NAME.csv`` and of its wall time ``seconds.NAME_attack``."""
    columns: ClassVar[tuple[str, ...]]
    """Columns that its table always has."""

    def check(self, federation: Federation, algorithm: Algorithm) -> None:
        """Raise `InputError` where it cannot observe this algorithm on this federation."""
        ...

    def initial_memory(self, state: State) -> Tensors:
        """What it remembers before the first round."""
        ...

    def observe(
        self, before: State, after: State, report: RoundReport, memory: Tensors, training: Training
    ) -> tuple[Tensors, Tensors]:
        """What it keeps of a round, and what it remembers for the next.

        Args:
            before, after: the states before and after the round.
            report: of the round.
            memory: what it remembered of the rounds before.
            training: that is observed.
        """
        ...

    def measure(
        self, observations: Mapping[int, Tensors], stream: Stream, *, jobs: int
    ) -> tuple[Summary, pd.DataFrame]:
        """Its metrics, and the rows of its table.

        Args:
            observations: what it kept, by round.
            stream: of its random draws.
            jobs: threads that it may use.
        """
        ...
