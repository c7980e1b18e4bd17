"""Attacks on the models of a federation, one file per paper, each a frozen dataclass; and the red team.

May import `engine` and below, never `algorithms` or `defenses`. A membership-inference attack implements
`MembershipAttack`, the red team the engine's `RiskEstimator`, an active property attacker its `MaliciousClient`. To add
a membership-inference attack: a new file, and its name in `MembershipAttacks`.
"""

from shoal.attacks.active_property import ActivePropertyAttacker, active_property_attacker
from shoal.attacks.audit import MembershipAudit, ModelOutputs, evaluate_models, one_group_mix
from shoal.attacks.client_canaries import (
    CanaryClients,
    ClientCanaryEstimate,
    canary_cosines,
    canary_directions,
    estimate_client_epsilon,
)
from shoal.attacks.label_only import ImageChanges, NoiseChanges, augmentation_votes, boundary_distance
from shoal.attacks.membership import FittedAttack, MembershipAttack, Needs, Query, Records, ReferenceModels
from shoal.attacks.one_run_audit import OneRunAudit, one_run_audit
from shoal.attacks.property import PropertyAttack, RoundObservation
from shoal.attacks.property_classifier import classify_updates
from shoal.attacks.red_team import RedTeam
from shoal.attacks.shadow_models import ShadowModels
from shoal.attacks.shokri import ShadowModelAttack
from shoal.attacks.trajectory import LossTrajectory, loss_trajectory
from shoal.attacks.update_features import extract_features
from shoal.attacks.yeom import Gap, LossThreshold

MembershipAttacks = ShadowModelAttack | LossThreshold | Gap
"""The membership-inference attacks that a configuration can name."""

__all__ = [
    "ActivePropertyAttacker",
    "CanaryClients",
    "ClientCanaryEstimate",
    "FittedAttack",
    "Gap",
    "ImageChanges",
    "LossThreshold",
    "LossTrajectory",
    "MembershipAttack",
    "MembershipAttacks",
    "MembershipAudit",
    "ModelOutputs",
    "Needs",
    "NoiseChanges",
    "OneRunAudit",
    "PropertyAttack",
    "Query",
    "Records",
    "RedTeam",
    "ReferenceModels",
    "RoundObservation",
    "ShadowModelAttack",
    "ShadowModels",
    "active_property_attacker",
    "augmentation_votes",
    "boundary_distance",
    "canary_cosines",
    "canary_directions",
    "classify_updates",
    "estimate_client_epsilon",
    "evaluate_models",
    "extract_features",
    "loss_trajectory",
    "one_group_mix",
    "one_run_audit",
]
