"""A defence maps a `TrainingSetup` to a `TrainingSetup`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.engine import ClusterRound, LocalDefense, LocalSGD, UpdateFilter
from shoal.models import Model


@dataclass(frozen=True)
class TrainingSetup:
    """What a defence may change.

    Args:
        model: the network; fixed before the first round.
        local: local training before any defence.
        update_filter: applied by the server to every update; None: none.
        defenses: change local training, in order, anew for each cluster in each round.
    """

    model: Model
    local: LocalSGD
    update_filter: UpdateFilter | None = None
    defenses: tuple[LocalDefense, ...] = ()

    def first_local(self) -> LocalSGD:
        """Local training of cluster 0 in the first round, which decides what trains it and what it spends."""
        local = self.local
        for defense in self.defenses:
            local = defense.local(local, ClusterRound(round=1, cluster=0))
        return local


class Defense(Protocol):
    """A defence against what clients and the server can learn from updates, or do by them; a value."""

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with this defence.

        A defence that changes local training adds itself to ``setup.defenses`` and implements `LocalDefense` as well.

        Raises:
            InputError: it cannot defend this setup.
        """
        ...


def defended(setup: TrainingSetup, defenses: Sequence[Defense]) -> TrainingSetup:
    """The setup with all ``defenses``, applied in order."""
    for defense in defenses:
        setup = defense.applied(setup)
    return setup
