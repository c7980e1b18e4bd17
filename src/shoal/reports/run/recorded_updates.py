"""What a run's page says of the clients' updates that it recorded."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.representation import one_line


@dataclass(frozen=True)
class RecordedUpdates:
    """The clients' updates that a run directory holds.

    Args:
        rounds: numbers of the recorded rounds, in order; at least one.
        size: of their files, in bytes.
    """

    rounds: tuple[int, ...]
    size: int
    __repr__ = one_line


def recorded_sentence(recorded: RecordedUpdates) -> str:
    """Which rounds are recorded, and how large they are.

    >>> recorded_sentence(RecordedUpdates((5, 10), 1_250_000))
    'What the server received from each client is recorded in 2 rounds (5 and 10): 1.2 MB in the folder updates.'
    """
    count = len(recorded.rounds)
    which = f"{count:,} rounds ({_listed(recorded.rounds)})" if count > 1 else f"round {recorded.rounds[0]}"
    megabytes = recorded.size / 1e6
    size = f"{megabytes:,.1f} MB" if megabytes >= 0.1 else f"{recorded.size / 1e3:,.1f} kB"
    return f"What the server received from each client is recorded in {which}: {size} in the folder updates."


def _listed(rounds: Sequence[int]) -> str:
    """All of a few rounds, or the first two and the last.

    >>> _listed([1, 2, 3]), _listed(range(5, 65, 5)), _listed([1, 2, 4, 8, 9])
    ('1, 2 and 3', '5, 10, ..., 60', '1, 2, ..., 9')
    """
    if len(rounds) > 4:
        return f"{rounds[0]}, {rounds[1]}, ..., {rounds[-1]}"
    return f"{', '.join(map(str, rounds[:-1]))} and {rounds[-1]}"
