"""The one shape of a defence: from what is trained and how to what is trained and how."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.engine import LocalSGD, UpdateFilter
from shoal.models import Model


@dataclass(frozen=True)
class TrainingSetup:
    """What a defence may change.

    Args:
        model: what is trained.
        local: what a client does in a round.
        screen: what the server does to updates before it merges them; None: nothing.
    """

    model: Model
    local: LocalSGD
    update_filter: UpdateFilter | None = None


class Defense(Protocol):
    """A defence against what clients and the server can learn from updates, or do by them; a value."""

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with this defence; `InputError` where it has no place there."""
        ...


def defended(setup: TrainingSetup, defenses: Sequence[Defense]) -> TrainingSetup:
    """The setup with all ``defenses``, applied in order."""
    for defense in defenses:
        setup = defense.applied(setup)
    return setup
