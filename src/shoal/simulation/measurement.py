"""The final models measured: the list of measurements, and the tables that they come from."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shoal.audit import canary_metrics
from shoal.audit.final_attacks import attack_final_models
from shoal.audit.measurement import (
    Accuracy,
    FinishedTraining,
    GroupExposure,
    GroupFairness,
    Measurement,
    ModelExposure,
    ReferenceCount,
    RepeatedAttacks,
    ShadowSetSizes,
    roc_curves,
)
from shoal.audit.model_scores import Membership
from shoal.audit.red_team import RedTeam
from shoal.audit.reference_records import AttackedRecords
from shoal.core.randomness import Stream
from shoal.data import Canaries
from shoal.engine import State, Training
from shoal.metrics.summary import Summary
from shoal.simulation.coordination import Coordination, PrivacyBudget
from shoal.simulation.main_task import MainTask
from shoal.simulation.outcome import Outcome

MEASUREMENTS: tuple[Measurement, ...] = (
    Accuracy(), GroupFairness(), GroupExposure(), ModelExposure(), RepeatedAttacks(), Coordination(), ShadowSetSizes(),
    ReferenceCount(), MainTask(),
)  # fmt: skip
"""The measurements of every run; those with tables of their own follow."""


def measure(
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
    )
    finished = FinishedTraining(state, training, red_team, deployed, losses, members, attacks)
    summary, clients, table = Summary(), finished.clients, None
    asked = [*MEASUREMENTS, PrivacyBudget(first_round)]
    for measurement in asked:
        summary |= measurement.measure(finished)
    if canaries is not None and len(canaries):
        table = canary_metrics.table_of_canaries(
            canaries, training.federation, deployed.models, members.latest, training.engine
        )
        clients[list(canary_metrics.CLIENT_CANARY_COLUMNS)] = pd.DataFrame(
            canary_metrics.canaries_of_clients(table, training.federation)
        )
        delta = summary.overall.get("delta", canary_metrics.DELTA)
        summary |= canary_metrics.CanaryExposure(table, delta).measure(finished)
    for measurement in measurements:
        summary |= measurement.measure(finished)
    return Outcome(
        summary=summary,
        clients=clients,
        rounds=pd.DataFrame(list(rows)),
        roc=roc_curves(attacks.configured[0]),
        state=state,
        canaries=table,
    )
