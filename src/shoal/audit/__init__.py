"""Attacks on records with known membership, measured as rates with confidence intervals."""

from shoal.audit.attacked_records import AuditRecords, leave_one_out_scores, median_threshold, reference_thresholds
from shoal.audit.audit import Audit, audit_records
from shoal.audit.canary_audit import OneRunAudit, one_run_audit
from shoal.audit.measurement import FinishedTraining, Measurement, measurement
from shoal.audit.record_exposure import record_exposure
from shoal.audit.record_table import RecordTable, measure
from shoal.audit.red_team import NEED_HOLDOUT, RedTeam
from shoal.audit.update_audit import UpdateAudit, audit_updates

__all__ = [
    "NEED_HOLDOUT", "Audit", "AuditRecords", "FinishedTraining", "Measurement", "OneRunAudit",
    "RecordTable", "RedTeam", "UpdateAudit", "audit_records", "audit_updates",
    "leave_one_out_scores", "measure", "measurement", "median_threshold", "one_run_audit", "record_exposure",
    "reference_thresholds",
]  # fmt: skip
