"""The wall time of a round by its parts, though threads work on several of them side by side."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

TRAIN = ("local_training", "defenses", "aggregation")
"""The parts of "train": clients that train; filters of updates and the release; the server's sums and what it does with
them. Clipping, noise and augmentation inside a step are local training."""


class RoundClock:
    """Measures parts of a round, none inside another; it changes no result.

    What threads spend inside `side_by_side` is scaled to its wall time, so parts always add up to what a watch says.

    Example:
        >>> from shoal.engine.round_clock import RoundClock
        >>> clock = RoundClock()
        >>> with clock.part("choose"):
        ...     pass
        ...
        >>> sorted(clock.seconds()), clock.seconds()["red_team"]
        (['aggregation', 'choose', 'defenses', 'local_training', 'red_team', 'train'], 0.0)
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._spent: dict[str, float] = dict.fromkeys(("choose", *TRAIN, "red_team"), 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what this thread spends in a block as the part ``name``."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            with self._lock:
                self._spent[name] += spent

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """A block in which threads train: its wall time is divided as the time of all threads in it is."""
        before, began = dict(self._spent), time.perf_counter()
        yield
        wall = time.perf_counter() - began
        inside = {name: self._spent[name] - before[name] for name in TRAIN}
        busy = sum(inside.values())
        shares = {name: spent / busy for name, spent in inside.items()} if busy else {"local_training": 1.0}
        self._spent = before | {name: before[name] + share * wall for name, share in shares.items()}

    def seconds(self) -> dict[str, float]:
        """The seconds of each part, and of "train", which is the sum of `TRAIN`."""
        return self._spent | {"train": sum(self._spent[name] for name in TRAIN)}
