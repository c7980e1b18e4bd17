"""Attacks on a federation's models, with one file per paper and one frozen dataclass per attack.

This package may import `engine` and below, never `algorithms` or `defenses`. A membership-inference attack implements
`MembershipAttack`. An attack on the scores of reference models implements `ReferenceAttack`. To add a
membership-inference attack, write a new file and add the class to `MEMBERSHIP_ATTACKS`.
"""

from shoal.attacks.membership_attack import (
    FittedAttack,
    MembershipAttack,
    Needs,
    Query,
    Records,
    ReferenceModels,
    logit_confidence,
    needs_classes,
)
from shoal.attacks.queries.label_only import ImageChanges, augmentation_votes, boundary_distance
from shoal.attacks.queries.loss_histograms import LossHistograms
from shoal.attacks.queries.shadow_models import ShadowModels
from shoal.attacks.queries.shokri import ShadowModelAttack
from shoal.attacks.queries.site_inference import SiteGuesses, SiteInference
from shoal.attacks.queries.yeom import Gap, LossThreshold
from shoal.attacks.reference_scores import Population, ReferenceAttack, ReferenceScores
from shoal.attacks.scores.bavaria import BaVarIA
from shoal.attacks.scores.calibration import DifficultyCalibration, LossScore, OtherClusters
from shoal.attacks.scores.lira import LiRA, OfflineLiRA
from shoal.attacks.scores.rmia import RMIA, OfflineRMIA
from shoal.attacks.scores.stack import Stack
from shoal.attacks.scores.trajectory import LossTrajectory
from shoal.attacks.span.candidates import Candidates, SpanScores
from shoal.attacks.span.joint import ModelJoint, UpdateJoint
from shoal.attacks.span.knowledge import Knowledge, ServerOptimizer
from shoal.attacks.span.span import ModelSpan, UpdateSpan
from shoal.attacks.updates.choices import ClusterIdentity, IdentityGuesses, PreferenceInference
from shoal.attacks.updates.client_membership import client_scores
from shoal.attacks.updates.model_acquisition import Acquisition, HarvestedModel, ModelAcquisition
from shoal.attacks.updates.source_inference import GroupInference, Guesses, SourceInference
from shoal.attacks.updates.update_membership import FedMIACosine, FedMIALoss, GradCosine, GradDifference
from shoal.attacks.updates.update_scores import OwnedRecords, UpdateAttack, UpdateScores, update_scores

MEMBERSHIP_ATTACKS = {cls.name: cls for cls in (ShadowModelAttack, LossThreshold, Gap)}
"""The membership-inference attacks by their names in a configuration."""

__all__ = [
    "MEMBERSHIP_ATTACKS", "RMIA", "Acquisition", "BaVarIA", "Candidates", "ClusterIdentity", "DifficultyCalibration",
    "FedMIACosine", "FedMIALoss", "FittedAttack", "Gap", "GradCosine", "GradDifference", "GroupInference", "Guesses",
    "HarvestedModel", "IdentityGuesses", "ImageChanges", "Knowledge", "LiRA", "LossHistograms", "LossScore",
    "LossThreshold", "LossTrajectory", "MembershipAttack", "ModelAcquisition", "ModelJoint", "ModelSpan", "Needs",
    "OfflineLiRA", "OfflineRMIA", "OtherClusters", "OwnedRecords", "Population", "PreferenceInference",
    "Query", "Records", "ReferenceAttack", "ReferenceModels",
    "ReferenceScores", "ServerOptimizer", "ShadowModelAttack", "ShadowModels", "SiteGuesses",
    "SiteInference", "SourceInference", "SpanScores", "Stack",
    "UpdateAttack", "UpdateJoint", "UpdateScores", "UpdateSpan", "augmentation_votes", "boundary_distance",
    "client_scores", "logit_confidence", "needs_classes", "update_scores",
]  # fmt: skip
