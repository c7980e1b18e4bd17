"""Attacks on the models of a federation, one paper a file, each a frozen dataclass; and the red team.

May import `engine` and below, never `algorithms`. An attack fills the socket `MembershipAttack`; the red team
fills the engine's socket `RiskEstimator`. To add an attack: a new file, and its class in `MembershipAttacks`.
"""

from shoal.attacks.active_property import ActivePropertyAttacker, active_property_attacker
from shoal.attacks.audit import MembershipAudit, ModelOutputs, evaluate_models, one_group_mix
from shoal.attacks.membership import FittedAttack, MembershipAttack, Records
from shoal.attacks.property import PropertyAttack, RoundObservation
from shoal.attacks.property_classifier import classify_updates
from shoal.attacks.red_team import RedTeam
from shoal.attacks.shadow_models import ShadowModels
from shoal.attacks.shokri import ShadowModelAttack
from shoal.attacks.update_features import pooled
from shoal.attacks.yeom import Gap, LossThreshold

MembershipAttacks = ShadowModelAttack | LossThreshold | Gap
"""The membership-inference attacks that a file can name."""

__all__ = [
    "ActivePropertyAttacker",
    "FittedAttack",
    "Gap",
    "LossThreshold",
    "MembershipAttack",
    "MembershipAttacks",
    "MembershipAudit",
    "ModelOutputs",
    "PropertyAttack",
    "Records",
    "RedTeam",
    "RoundObservation",
    "ShadowModelAttack",
    "ShadowModels",
    "active_property_attacker",
    "classify_updates",
    "evaluate_models",
    "one_group_mix",
    "pooled",
]
