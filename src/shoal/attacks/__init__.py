"""Attacks on the models of a federation, one file per paper, each a frozen dataclass; and the red team.

May import `engine` and below, never `algorithms` or `defenses`. A membership-inference attack implements
`MembershipAttack`, the red team the engine's `RiskEstimator`, an active property attacker its `MaliciousClient`. To add
a membership-inference attack: a new file, and its name in `MembershipAttacks`. An attack on the scores of reference
models implements `ReferenceAttack`.
"""

from shoal.attacks.audit import MembershipAudit, one_group_mix
from shoal.attacks.membership import (
    FittedAttack,
    MembershipAttack,
    Needs,
    Query,
    Records,
    ReferenceModels,
    logit_confidence,
    needs_classes,
)
from shoal.attacks.model_outputs import ModelOutputs, evaluate_models
from shoal.attacks.one_run_audit import OneRunAudit, one_run_audit
from shoal.attacks.queries.label_only import ImageChanges, NoiseChanges, augmentation_votes, boundary_distance
from shoal.attacks.queries.loss_histograms import LossHistograms
from shoal.attacks.queries.recorded_risks import RecordedRisks
from shoal.attacks.queries.red_team import NEED_HOLDOUT, RedTeam
from shoal.attacks.queries.shadow_models import ShadowModels
from shoal.attacks.queries.shokri import ShadowModelAttack
from shoal.attacks.queries.yeom import Gap, LossScore, LossThreshold
from shoal.attacks.reconstruction_audit import ReconstructionAudit, audit_reconstruction
from shoal.attacks.record_exposure import record_exposure
from shoal.attacks.reference_scores import Population, ReferenceAttack, ReferenceScores
from shoal.attacks.reference_threshold import leave_one_out_scores, median_threshold, reference_thresholds
from shoal.attacks.scores.bavaria import BaVarIA
from shoal.attacks.scores.difficulty_calibration import DifficultyCalibration
from shoal.attacks.scores.lira import LiRA, OfflineLiRA
from shoal.attacks.scores.other_clusters import OtherClusters
from shoal.attacks.scores.rmia import RMIA, OfflineRMIA
from shoal.attacks.scores.trajectory import LossTrajectory, loss_trajectory
from shoal.attacks.update_audit import UpdateAudit, audit_updates
from shoal.attacks.updates.centroid_reconstruction import (
    ReconstructedUpdates,
    reconstruct_from_rounds,
    reconstruct_updates,
)
from shoal.attacks.updates.client_canaries import (
    CanaryClients,
    ClientCanaryEstimate,
    canary_cosines,
    canary_directions,
    estimate_client_epsilon,
)
from shoal.attacks.updates.cluster_identity import ClusterIdentity, IdentityGuesses
from shoal.attacks.updates.fedmia import FedMIACosine, FedMIALoss
from shoal.attacks.updates.gradient_alignment import GradCosine, GradDifference
from shoal.attacks.updates.model_acquisition import Acquisition, HarvestedModel, ModelAcquisition
from shoal.attacks.updates.preference_inference import PreferenceInference
from shoal.attacks.updates.source_inference import GroupInference, Guesses, SourceGuesses, SourceInference
from shoal.attacks.updates.sybil_paths import Received
from shoal.attacks.updates.update_scores import OwnedRecords, UpdateAttack, UpdateScores, update_scores
from shoal.property.active_attacker import ActivePropertyAttacker, active_property_attacker
from shoal.property.property_attack import PropertyAttack
from shoal.property.property_classifier import classify_updates
from shoal.property.round_observation import RoundObservation
from shoal.property.update_features import extract_features

MembershipAttacks = ShadowModelAttack | LossThreshold | Gap
"""The membership-inference attacks that a configuration can name."""

__all__ = [
    "NEED_HOLDOUT",
    "RMIA",
    "Acquisition",
    "ActivePropertyAttacker",
    "BaVarIA",
    "CanaryClients",
    "ClientCanaryEstimate",
    "ClusterIdentity",
    "DifficultyCalibration",
    "FedMIACosine",
    "FedMIALoss",
    "FittedAttack",
    "Gap",
    "GradCosine",
    "GradDifference",
    "GroupInference",
    "Guesses",
    "HarvestedModel",
    "IdentityGuesses",
    "ImageChanges",
    "LiRA",
    "LossHistograms",
    "LossScore",
    "LossThreshold",
    "LossTrajectory",
    "MembershipAttack",
    "MembershipAttacks",
    "MembershipAudit",
    "ModelAcquisition",
    "ModelOutputs",
    "Needs",
    "NoiseChanges",
    "OfflineLiRA",
    "OfflineRMIA",
    "OneRunAudit",
    "OtherClusters",
    "OwnedRecords",
    "Population",
    "PreferenceInference",
    "PropertyAttack",
    "Query",
    "Received",
    "ReconstructedUpdates",
    "ReconstructionAudit",
    "RecordedRisks",
    "Records",
    "RedTeam",
    "ReferenceAttack",
    "ReferenceModels",
    "ReferenceScores",
    "RoundObservation",
    "ShadowModelAttack",
    "ShadowModels",
    "SourceGuesses",
    "SourceInference",
    "UpdateAttack",
    "UpdateAudit",
    "UpdateScores",
    "active_property_attacker",
    "audit_reconstruction",
    "audit_updates",
    "augmentation_votes",
    "boundary_distance",
    "canary_cosines",
    "canary_directions",
    "classify_updates",
    "estimate_client_epsilon",
    "evaluate_models",
    "extract_features",
    "leave_one_out_scores",
    "logit_confidence",
    "loss_trajectory",
    "median_threshold",
    "needs_classes",
    "one_group_mix",
    "one_run_audit",
    "reconstruct_from_rounds",
    "reconstruct_updates",
    "record_exposure",
    "reference_thresholds",
    "update_scores",
]
