"""Property inference in clustered federated learning (Kim et al., RAID 2023).

`PropertyAttack` implements the public protocol `shoal.simulation.simulation.RoundAttack`.
"""

from shoal.property.active_attacker import ActivePropertyAttacker, active_property_attacker
from shoal.property.property_attack import PropertyAttack
from shoal.property.property_federation import PropertyPartition, PropertySchedule, partition_by_property
from shoal.property.scenario import PropertyAttackSection
from shoal.property.simulated_updates import extract_features
from shoal.property.update_table import RoundObservation, classify_updates

__all__ = [
    "ActivePropertyAttacker", "PropertyAttack", "PropertyAttackSection", "PropertyPartition", "PropertySchedule",
    "RoundObservation", "active_property_attacker", "classify_updates", "extract_features", "partition_by_property",
]  # fmt: skip
