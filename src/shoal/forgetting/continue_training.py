"""The others go on: the models keep what they learnt from the clients that left."""

from typing import ClassVar, Literal

from shoal.core.settings import settings
from shoal.engine import Algorithm, Departure, Leaving, LocalSGD, Release, State


@settings
class Continue:
    """The others go on with the models as they are. Training them further is all that makes the leaver fade.

    This is what most federations do. It costs nothing, and it is the method that the others must beat.

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
        """Every algorithm will do."""

    def forget(self, leaving: Leaving) -> tuple[State, Departure]:
        """The state as it is."""
        return leaving.state, leaving.departure(self.name, leaving.state)
