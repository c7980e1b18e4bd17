"""The final models measured: the list of measurements, and the tables that they come from."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
from shoal.audit.reference_records import AttackedRecords
from shoal.core.errors import require_instance
from shoal.engine import State, Training
from shoal.metrics.summary import Summary
from shoal.simulation.coordination import PrivacyBudget, coordination
from shoal.simulation.outcome import Outcome
from shoal.simulation.round_metrics import main_task

if TYPE_CHECKING:
    from shoal.simulation.simulation import Simulation

MEASUREMENTS: tuple[Measurement, ...] = (
    client_accuracy, group_fairness, group_exposure, model_exposure, repeated_attacks, coordination, shadow_examples,
    reference_models, main_task,
)  # fmt: skip
"""The measurements of every run; those with tables of their own follow."""


def measure_models(
    simulation: "Simulation",
    training: Training,
    state: State,
    rows: Sequence[Mapping[str, float]],
    references: AttackedRecords | None = None,
) -> Outcome:
    """Measure the final ``state``: every client chooses among the final models, and these are attacked.

    Args:
        simulation: what is measured, and how.
        training: of it, that led to ``state``.
        rows: of `rounds.csv`.
        references: records of the run, attacked with its reference federations; then the strongest of all attacks
            decides how exposed a model is. None: there are none.
    """
    team, rounds, canaries = simulation.red_team, simulation.member_rounds, simulation.canaries
    deployed, losses = training.deployed(state)
    members = Membership.of_deployed(state, deployed, rounds)
    attacked = {"members": members, "member_rounds": rounds, "references": references, "view": simulation.view}
    attacks = attack_final_models(state, deployed, training, team, training.stream("final"), **attacked)
    finished = FinishedTraining(state, training, team, deployed, losses, members, attacks)
    summary, measurements = Summary(), tuple(simulation.metrics)
    for measurement in (*MEASUREMENTS, PrivacyBudget(simulation.first_round)):
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
