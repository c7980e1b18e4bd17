"""The measurement of the final models: metrics, tables and the differential-privacy guarantee."""

import logging
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, nan

import pandas as pd
import torch
from torch import Tensor

from shoal.algorithms.wrapper import choice_noise
from shoal.audit.attacked_records import AttackedRecords
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
    shadow_examples,
)
from shoal.audit.model_scores import Membership, roc_curves
from shoal.audit.red_team import NEED_HOLDOUT
from shoal.control import LimitController
from shoal.core.errors import require_instance
from shoal.core.formats import one_line
from shoal.data.content import most_copies
from shoal.data.preferences import VIEWS, View
from shoal.data.presence import LAST
from shoal.defenses import accounting
from shoal.engine import (
    ClientTrainings,
    ClusterRound,
    Departure,
    DeployedModels,
    Engine,
    LocalSGD,
    State,
    Tensors,
    Training,
    client_trainings,
)
from shoal.forgetting import Continue
from shoal.metrics.attack_bounds import AttackBound
from shoal.metrics.summary import Summary
from shoal.simulation.baselines import baselines_of, compare_with_baselines
from shoal.simulation.final_warnings import SmallClusters, learning
from shoal.simulation.play import SimulationState, add_seconds
from shoal.simulation.round_metrics import coordination, main_task
from shoal.simulation.simulation import Simulation

LOG = logging.getLogger(__name__)

CLIENT_COLUMNS = (
    "client", "group", "cluster", "examples", "threshold", "alpha", "beta", "loss", "accuracy", "mia", "violated",
)  # fmt: skip
"""The first columns of `clients.csv`."""

EXPOSURE_COLUMNS = ("exposure", "exposure_low", "exposure_null_high", "attack", "exceeded")
"""The exposure columns of `clients.csv`; see `exposure_of_clients`."""

ROUND_COLUMNS = ("round", "cluster", "clients", "risk", "accuracy")
"""The columns of every `rounds.csv`; groups add further columns."""

FORGETTING_FIGURES = (
    "client_rounds", "full_client_rounds", "clusters", "choices", "changed_choices", "megabytes", "seconds",
    "history_seconds",
)  # fmt: skip
"""The figures of departures in summary.json, as ``forgetting.NAME``."""

PRESENCE_COLUMNS = ("client", "name", "first_round", "last_round", "cluster", "method")
"""The columns of `presence.csv`."""

ROC_COLUMNS = ("group", "non_members", "fpr", "tpr")
"""The columns of `roc.csv`."""

MEASUREMENTS: tuple[Measurement, ...] = (
    client_accuracy, group_fairness, group_exposure, model_exposure, repeated_attacks, coordination, shadow_examples,
    reference_models, main_task,
)  # fmt: skip
"""The measurements of every run that produce no separate table."""


@dataclass(frozen=True, eq=False)
class FinalMeasurement:
    """The metrics, tables and final state of a simulation.

    Args:
        summary: the metrics of `summary.json`.
        clients: one row per client, with `CLIENT_COLUMNS`, ``train_accuracy``, `EXPOSURE_COLUMNS` and
            ``threshold_drawn``. Client limits add the column ``view``, DP-SGD adds ``epsilon``, canaries add
            `CLIENT_CANARY_COLUMNS`, and named clients add ``name``.
        state: the state after the last round, whose assignment is each client's last cluster in training.
        rounds, roc, updates, canaries, presence: tables described in `shoal.Result`.
    """

    summary: Summary
    clients: pd.DataFrame
    rounds: pd.DataFrame
    roc: pd.DataFrame
    state: State
    updates: pd.DataFrame | None = None
    canaries: pd.DataFrame | None = None
    presence: pd.DataFrame | None = None
    __repr__ = one_line


def measure_models(
    simulation: Simulation,
    training: Training,
    state: State,
    use: tuple[DeployedModels, Tensor],
    rows: Sequence[Mapping[str, float]],
    references: AttackedRecords | None = None,
    budget: "PrivacyBudget | None" = None,
) -> FinalMeasurement:
    """Attack and measure the models that clients use after the last round.

    Args:
        use: the deployed models and each client's loss, from `Training.deployed_models`.
        references: the records attacked with reference federations; the strongest attack determines exposure.
        budget: the measurement of epsilon; ``None`` measures the epsilon of ``training``.
    """
    team, rounds, canaries = simulation.red_team, simulation.member_rounds, simulation.canaries
    deployed, losses = use
    members = Membership.of_deployed(state, deployed, rounds)
    settings = {"members": members, "member_rounds": rounds, "references": references, "view": simulation.view}
    attacks = attack_final_models(state, deployed, training, team, training.stream("final"), **settings)
    finished = FinishedTraining(state, training, team, deployed, losses, members, attacks)
    summary, measurements = Summary(), tuple(simulation.metrics)
    for measurement in (
        *MEASUREMENTS, budget or PrivacyBudget(simulation.first_round), SmallClusters(simulation.min_clients), learning,
    ):  # fmt: skip
        summary |= measurement.measure(finished)
    if canaries is not None and len(canaries):
        measurements = (CanaryExposure(canaries, summary.overall.get("delta", DELTA)), *measurements)
    for measurement in measurements:
        figures = measurement.measure(finished)
        require_instance(f"metric {measurement.name}", figures, Summary, "such as Summary(overall={...})")
        summary |= figures
    return FinalMeasurement(
        summary=summary,
        clients=finished.clients,
        rounds=pd.DataFrame(list(rows)),
        roc=roc_curves(attacks.configured[0]),
        state=state,
        canaries=finished.tables.get("canaries"),
    )


def measure_final(
    simulation: Simulation,
    engine: Engine,
    now: SimulationState,
    observations: Mapping[int, Tensors] | None = None,
    references: AttackedRecords | None = None,
) -> FinalMeasurement:
    """Let every client choose among the final models, attack these models, and measure them."""
    began = time.perf_counter()
    training, attack, everyone = simulation.on(engine), simulation.round_attack, simulation
    state, present = now.state, training.present(now.state.round)
    if simulation.events:
        # Absent clients are neither measured nor attacked.
        rest = simulation.federation_in_round(state.round).take(present)
        simulation = replace(simulation, federation=rest, events=(), forgetting=Continue())
        training, state = simulation.on(engine), state.take(present)
    use = training.deployed_models(state)
    budget = PrivacyBudget(simulation.first_round, everyone.on(engine), now.departures)
    result = measure_models(simulation, training, state, use, now.rows, references, budget)
    if attack is not None:
        figures, updates = attack.measure(observations or {}, training.stream("final"), jobs=engine.threads)
        result = replace(result, summary=result.summary | figures, updates=updates)
    measuring, spent = time.perf_counter() - began, now.seconds
    baselines = baselines_of(simulation, len(now.state.models)) if simulation.baselines else {}
    if baselines:
        comparing = time.perf_counter()
        compared = compare_with_baselines(everyone, engine, use[0], baselines)
        comparing = time.perf_counter() - comparing
        result = replace(result, summary=result.summary | compared)
        spent = add_seconds(spent, {"baselines": comparing, "total": comparing})
    spent = add_seconds(spent, {"measurement": measuring, "total": measuring})
    seconds = {f"seconds.{key}": round(value, 3) for key, value in timings(spent, now.by_round).items()}
    identity = {"seed": simulation.seed, "rounds": now.state.round, "view": simulation.view}
    figures, presence = presence_figures(everyone, now)
    run = Summary(run=identity, overall=seconds | figures)
    return replace(result, summary=result.summary | run, presence=presence)


def presence_figures(simulation: Simulation, now: SimulationState) -> tuple[dict[str, float], pd.DataFrame | None]:
    """Return the figures of clients that left or joined, and their table `presence.csv`, one row per client.

    The figures are the numbers of clients and the costs of forgetting, by key of `summary.json`. In the table,
    ``cluster`` is a client's last cluster in training (-1 if none), and ``method`` is the forgetting method. Without
    events, the result is empty.
    """
    presence, federation = simulation.presence, simulation.federation
    if presence is None:
        return {}, None
    left, joined = presence.last < LAST, presence.first > 1
    figures = {"left": float(left.sum()), "joined": float(joined.sum())}
    for name in FORGETTING_FIGURES if now.departures else ():
        figures[f"forgetting.{name}"] = round(sum(getattr(departure, name) for departure in now.departures), 3)
    changed = torch.nonzero(left | joined).flatten()
    method = {client: departure.method for departure in now.departures for client in departure.clients.tolist()}
    ids = federation.ids.tolist()
    table = {
        "client": federation.ids[changed].tolist(),
        "name": [str(ids[i]) if federation.names is None else federation.names[i] for i in changed.tolist()],
        "first_round": presence.first[changed].tolist(),
        "last_round": pd.array([last if last < LAST else None for last in presence.last[changed].tolist()], "Int64"),
        "cluster": now.state.assignment[changed].tolist(),
        "method": [method.get(i) for i in changed.tolist()],
    }
    return figures, pd.DataFrame(table, columns=PRESENCE_COLUMNS)


def timings(seconds: Mapping[str, float], by_round: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the seconds of each phase of a run, by the phase's key.

    Each key of ``seconds`` keeps its time, and "other" is the remaining time. "share.PART" is the part's fraction of
    the total, and "round.PART" is the part's median over rounds.

    >>> timings({"choose": 1.0, "train": 2.0, "local_training": 2.0, "total": 4.0}, [{"choose": 0.4}, {"choose": 0.6}])
    ... # doctest: +NORMALIZE_WHITESPACE
    {'choose': 1.0, 'train': 2.0, 'local_training': 2.0, 'other': 1.0, 'total': 4.0, 'share.choose': 0.25,
    'share.local_training': 0.5, 'share.other': 0.25, 'round.choose': 0.5}
    """
    total = seconds["total"]
    parts = {key: value for key, value in seconds.items() if key not in ("train", "total")}
    # Clocks of threads are read at different moments, so the remainder may be slightly negative.
    parts["other"] = max(0.0, total - sum(parts.values()))
    of_rounds = [key for key in parts if any(key in row for row in by_round)]
    medians = {key: statistics.median(row.get(key, 0.0) for row in by_round) for key in of_rounds}
    return (
        {key: value for key, value in seconds.items() if key != "total"}
        | {"other": parts["other"], "total": total}
        | {f"share.{key}": value / total for key, value in parts.items() if total}
        | {f"round.{key}": value for key, value in medians.items()}
    )


def accountable_trainings(training: Training, state: State) -> ClientTrainings | None:
    """Return a client's training runs with the largest privacy loss; ``None`` if directives change the noise.

    Without a coordinator, the result is the training runs of cluster 0 in the last round. With a coordinator, the
    result is the training runs without directives, which have the most steps.
    """
    fixed = tuple(defense for defense in training.defenses if defense is not training.coordinator)
    last, unsteered = replace(state, round=max(0, state.round - 1)), replace(training, defenses=fixed)
    trainings = client_trainings(training.algorithm, training.local).changed(
        lambda local: unsteered.local_of(last, 0, local)
    )
    local = trainings.rounds[0]
    knobs = training.coordinator.knobs.values() if isinstance(training.coordinator, LimitController) else ()
    for knob in knobs:
        steered = local if knob.defense is None else knob.defense.local(local, ClusterRound(round=1, cluster=0))
        if _spending(steered) != _spending(local):
            return None
    return trainings


def _spending(local: LocalSGD) -> tuple[object, ...]:
    """Return the settings that determine a client's privacy loss in a round."""
    return (local.gradient_privacy if local.private else None), local.batch_size, local.epochs, local.steps


@dataclass(frozen=True)
class PrivacyBudget:
    """A measurement of epsilon for runs with DP-SGD, which also adds the clients' column "epsilon".

    Args:
        first_round: the first round that epsilon covers.
        everyone: the training of all clients, including clients that left; ``None`` if no client leaves or joins.
        departures: the departures of clients; epsilon covers the training that forgetting needs.
    """

    first_round: int = 1
    everyone: Training | None = None
    departures: Sequence[Departure] = ()
    name, title = "epsilon", "Privacy budget"

    def measure(self, finished: FinishedTraining) -> Summary:
        """Return epsilon, delta and the bounds on attacks; empty without DP-SGD."""
        training, state = self.everyone or finished.training, finished.state
        trainings = accountable_trainings(training, state)
        if trainings is None:
            LOG.warning("no epsilon is stated, since a coordinator changed the noise of local steps")
            return Summary()
        rule = accounting.private_rule(trainings.rounds[0])
        if rule is None:
            return Summary()
        cohorts = [training.cohort(number) for number in range(self.first_round, state.round + 1)]
        cohorts += [cohort for departure in self.departures for cohort in departure.cohorts]
        choice, by_view, bounds = choice_noise(training.algorithm), {}, dict[View, AttackBound]()
        copies = most_copies(training.federation.clients)
        if int(copies.max()) > 1:
            LOG.warning(
                "client %d has one record %d times; epsilon covers all copies and would be smaller without them",
                training.federation.ids[int(copies.argmax())],
                int(copies.max()),
            )
        if rule.noise == "sum":
            attended = torch.bincount(torch.cat(cohorts), minlength=len(training.federation))
            by_view = accounting.epsilons_by_view(rule, attended, choice, copies=copies)
            spent, bounds = by_view["client"], accounting.bounds_by_view(rule, attended, choice, copies=copies)
        else:
            count = training.federation, cohorts, trainings, rule, self.first_round, choice, copies
            private = accounting.PrivateTrainings(*count)
            spent, bounds = private.epsilons(), dict.fromkeys(VIEWS, private.bound())
        present = torch.isin(training.federation.ids, finished.federation.ids)
        finished.clients["epsilon"] = spent[present].numpy()
        largest = {"epsilon": float(spent.max())}
        largest |= {f"epsilon.{view}": float(epsilons.max()) for view, epsilons in by_view.items()}
        if choice is not None:
            largest["epsilon.choice"] = accounting.gaussian_epsilon(
                int(copies.max()) / choice if choice else inf, rule.delta
            )
        # Infinity (no noise, no guarantee) is not a JSON number.
        finite = {key: value if isfinite(value) else nan for key, value in largest.items()}
        if isfinite(largest["epsilon"]):
            for view in _views_covered(finished):
                finite |= {f"bound.{view}.{name}": value for name, value in bounds[view]._asdict().items()}
        return Summary(overall={**finite, "delta": rule.delta})


def _views_covered(finished: FinishedTraining) -> Sequence[View]:
    """Return the views for which the guarantee covers all observations.

    If clients choose a model without noise, the models reveal the choice to every view. The red team's counts are
    visible to the server, and through a coordinator's directives to every view.
    """
    training, team = finished.training, finished.red_team
    counts = team.every > 0 and team.estimator in NEED_HOLDOUT
    chosen = len(finished.state.models) > 1 and choice_noise(training.algorithm) is None
    if chosen or (counts and training.coordinator is not None):
        return ()
    return VIEWS[:-1] if counts else VIEWS
