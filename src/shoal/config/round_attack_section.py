"""The table ``[property_attack]``: an attack that observes rounds, with the federation that it is made for."""

from typing import Any, Protocol

from shoal.core.randomness import Stream
from shoal.data import Federation, LabelledDataset, Preferences
from shoal.data.partition import PartitionIndices
from shoal.engine import MaliciousClients
from shoal.models import Model
from shoal.simulation.round_attack import RoundAttack
from shoal.simulation.simulation import Simulation


class RoundAttackSection(Protocol):
    """Value of the table: `shoal.property.PropertyAttackSection`, or a class that ``name = "module:Name"`` names.

    ``config`` is the configuration, a `shoal.Config`.
    """

    attack: RoundAttack

    @staticmethod
    def from_simulation(simulation: Simulation) -> "RoundAttackSection | None":
        """The table that describes the attack of a simulation in Python; None where none does."""
        ...

    def check(self, config: Any) -> None:  # noqa: ANN401 - its schema has a field of this type
        """Raise `InputError` where other tables contradict this one."""
        ...

    def draw(self, config: Any, dataset: LabelledDataset, stream: Stream) -> PartitionIndices:  # noqa: ANN401
        """Draw the partition of the examples."""
        ...

    def federation(
        self,
        config: Any,  # noqa: ANN401
        dataset: LabelledDataset,
        indices: PartitionIndices,
        preferences: Preferences,
        stream: Stream,
    ) -> Federation:
        """The federation of these examples, as `draw` gave them."""
        ...

    def malicious_clients(self, model: Model, federation: Federation) -> MaliciousClients | None:
        """Clients that train in their own way for the attack; None where it only observes."""
        ...
