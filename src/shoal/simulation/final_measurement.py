"""The final models measured: the list of measurements, and the tables that they come from."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shoal.audit.canary_audit import DELTA, CanaryExposure
from shoal.audit.final_attacks import attack_final_models
from shoal.audit.measurement import (
    FinishedTraining,
    Measurement,
    client_accuracy,
    group_exposure,
    group_fairness,
    model_exposure,
    reference_models,
    repeated_attacks,
    roc_curves,
    shadow_examples,
)
from shoal.audit.model_scores import Membership
from shoal.audit.records import OUTSIDER
from shoal.audit.red_team import RedTeam
from shoal.audit.reference_records import AttackedRecords
from shoal.core.errors import require_instance
from shoal.core.randomness import Stream
from shoal.data import Canaries
from shoal.data.preferences import View
from shoal.engine import State, Training
from shoal.metrics.summary import Summary
from shoal.simulation.coordination import PrivacyBudget, coordination
from shoal.simulation.outcome import Outcome
from shoal.simulation.round_metrics import main_task

MEASUREMENTS: tuple[Measurement, ...] = (
    client_accuracy, group_fairness, group_exposure, model_exposure, repeated_attacks, coordination, shadow_examples,
    reference_models, main_task,
)  # fmt: skip
"""The measurements of every run; those with tables of their own follow."""


def measure_models(
    state: State,
    training: Training,
    red_team: RedTeam,
    stream: Stream,
    rows: Sequence[Mapping[str, float]],
    *,
    member_rounds: int,
    first_round: int = 1,
    canaries: Canaries | None = None,
    references: AttackedRecords | None = None,
    view: View = OUTSIDER,
    measurements: Sequence[Measurement] = (),
) -> Outcome:
    """Measure the final ``state``: every client chooses among the final models, and these are attacked.

    Args:
        training: that led to ``state``.
        red_team: its attack is measured.
        rows: the rows of `rounds.csv`.
        member_rounds: rounds before a model's last training in which somebody who trained it still is a member.
        first_round: the number of the first round; epsilon is of the rounds from it on.
        canaries: of the federation; None: none.
        references: records of the run, attacked with its reference federations; then the strongest of all attacks
            decides how exposed a model is. None: there are none.
        view: whose exposure is measured; clients' limits may name others.
        measurements: further ones.
    """
    deployed, losses = training.deployed(state)
    members = Membership.of_deployed(state, deployed, member_rounds)
    attacks = attack_final_models(
        state,
        deployed,
        training,
        red_team,
        stream,
        members=members,
        member_rounds=member_rounds,
        references=references,
        view=view,
    )
    finished = FinishedTraining(state, training, red_team, deployed, losses, members, attacks)
    summary = Summary()
    for measurement in (*MEASUREMENTS, PrivacyBudget(first_round)):
        summary |= measurement.measure(finished)
    if canaries is not None and len(canaries):
        measurements = (CanaryExposure(canaries, summary.overall.get("delta", DELTA)), *measurements)
    for measurement in measurements:
        measured = measurement.measure(finished)
        require_instance(f"metric {measurement.name}", measured, Summary, "as Summary(overall={...}) gives")
        summary |= measured
    return Outcome(
        summary=summary,
        clients=finished.clients,
        rounds=pd.DataFrame(list(rows)),
        roc=roc_curves(attacks.configured[0]),
        state=state,
        canaries=finished.tables.get("canaries"),
    )
