"""Attacks on the models of a federation, one file per paper, each a frozen dataclass; and the red team.

May import `engine` and below, never `algorithms` or `defenses`. A membership-inference attack implements
`MembershipAttack`, the red team the engine's `RiskEstimator`, an active property attacker its `MaliciousClient`. To add
a membership-inference attack: a new file, and its name in `MembershipAttacks`. An attack on the scores of reference
models implements `ReferenceAttack`.
"""

from shoal.attacks.active_property import ActivePropertyAttacker, active_property_attacker
from shoal.attacks.audit import MembershipAudit, ModelOutputs, evaluate_models, one_group_mix
from shoal.attacks.bavaria import BaVarIA
from shoal.attacks.difficulty_calibration import DifficultyCalibration
from shoal.attacks.lira import LiRA, OfflineLiRA
from shoal.attacks.loss_histograms import LossHistograms
from shoal.attacks.membership import (
    FittedAttack,
    MembershipAttack,
    Needs,
    Query,
    Records,
    ReferenceModels,
    logit_confidence,
)
from shoal.attacks.other_clusters import OtherClusters
from shoal.attacks.property import PropertyAttack, RoundObservation
from shoal.attacks.property_classifier import classify_updates
from shoal.attacks.recorded_risks import RecordedRisks
from shoal.attacks.red_team import NEED_HOLDOUT, RedTeam
from shoal.attacks.reference_scores import Population, ReferenceAttack, ReferenceScores
from shoal.attacks.reference_threshold import reference_margins
from shoal.attacks.rmia import RMIA, OfflineRMIA
from shoal.attacks.shadow_models import ShadowModels
from shoal.attacks.shokri import ShadowModelAttack
from shoal.attacks.update_features import extract_features
from shoal.attacks.yeom import Gap, LossScore, LossThreshold

MembershipAttacks = ShadowModelAttack | LossThreshold | Gap
"""The membership-inference attacks that a configuration can name."""

__all__ = [
    "NEED_HOLDOUT",
    "RMIA",
    "ActivePropertyAttacker",
    "BaVarIA",
    "DifficultyCalibration",
    "FittedAttack",
    "Gap",
    "LiRA",
    "LossHistograms",
    "LossScore",
    "LossThreshold",
    "MembershipAttack",
    "MembershipAttacks",
    "MembershipAudit",
    "ModelOutputs",
    "Needs",
    "OfflineLiRA",
    "OfflineRMIA",
    "OtherClusters",
    "Population",
    "PropertyAttack",
    "Query",
    "RecordedRisks",
    "Records",
    "RedTeam",
    "ReferenceAttack",
    "ReferenceModels",
    "ReferenceScores",
    "RoundObservation",
    "ShadowModelAttack",
    "ShadowModels",
    "active_property_attacker",
    "classify_updates",
    "evaluate_models",
    "extract_features",
    "logit_confidence",
    "one_group_mix",
    "reference_margins",
]
