"""Attacks on the models of a federation, one paper a file, each a frozen dataclass; and the red team.

May import `engine` and below, never `algorithms`. An attack fills the socket `MembershipAttack`; the red team
fills the engine's socket `RiskSensor`. To add an attack: a new file, its name in `ATTACKS` and in the config.
"""

from shoal.attacks.active_property import ActiveAttacker, active_attacker
from shoal.attacks.audit import Audit, Observed, observe, only
from shoal.attacks.membership import FittedAttack, MembershipAttack, Records
from shoal.attacks.property import PropertyAttack, Sighting
from shoal.attacks.property_classifier import infer
from shoal.attacks.red_team import RedTeam
from shoal.attacks.shadow_models import ShadowModels
from shoal.attacks.shokri import Shokri
from shoal.attacks.update_features import pooled
from shoal.attacks.yeom import Gap, LossThreshold

ATTACKS = ("shadow", "loss-threshold", "gap")

__all__ = [
    "ATTACKS",
    "ActiveAttacker",
    "Audit",
    "FittedAttack",
    "Gap",
    "LossThreshold",
    "MembershipAttack",
    "Observed",
    "PropertyAttack",
    "Records",
    "RedTeam",
    "ShadowModels",
    "Shokri",
    "Sighting",
    "active_attacker",
    "infer",
    "observe",
    "only",
    "pooled",
]
