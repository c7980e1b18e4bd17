"""The protocol of defences: each maps a `TrainingSetup` to a `TrainingSetup`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shoal.engine import LocalSGD, UpdateFilter
from shoal.models import Model


@dataclass(frozen=True)
class TrainingSetup:
    """The parts of training that a defence may change.

    Args:
        model: that is trained.
        local: local training.
        update_filter: applied by the server to each update before aggregation; None: nothing is.
    """

    model: Model
    local: LocalSGD
    update_filter: UpdateFilter | None = None


class Defense(Protocol):
    """A defence against what can be learned from updates or done by them: settings with one method."""

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with this defence.

        Raises:
            InputError: the defence does not fit the setup.
        """
        ...


def defended(setup: TrainingSetup, defenses: Sequence[Defense]) -> TrainingSetup:
    """The setup with all ``defenses``, applied in order."""
    for defense in defenses:
        setup = defense.applied(setup)
    return setup
