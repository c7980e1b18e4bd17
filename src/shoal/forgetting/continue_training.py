"""Forgetting by continued training of the remaining clients."""

from typing import ClassVar, Literal

from shoal.core.settings import settings
from shoal.engine import Algorithm, Departure, Leaving, LocalSGD, Release, State


@settings
class Continue:
    """Continued training: no model changes when a client leaves, and the client's influence fades.

    Continued training is common practice, costs nothing extra, and is the baseline for the other methods.

    Example:
        >>> import shoal.toy
        >>> events = [shoal.Event(round=3, leave=(0,))]
        >>> federation, model, local = shoal.toy.one_group()
        >>> simulation = shoal.Simulation(federation, model, shoal.FedAvg(), local, rounds=4, events=events)
        >>> result = shoal.Run(simulation).train()
        >>> result.clients["client"].tolist(), result.summary.overall["forgetting.client_rounds"]
        ([1, 2], 0.0)
    """

    name: Literal["continue"] = "continue"
    title: ClassVar[str] = "Train on"

    def check(self, algorithm: Algorithm, local: LocalSGD, release: Release | None) -> None:
        """Accept every algorithm."""

    def forget(self, leaving: Leaving) -> tuple[State, Departure]:
        """Return the state unchanged."""
        return leaving.state, leaving.departure(self.name, leaving.state)
