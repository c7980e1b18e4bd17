"""Baselines of clustering: one model for all clients, local training, and one model per group."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.special import stdtrit

from shoal.algorithms import ByGroup, FedAvg, LocalOnly
from shoal.algorithms.wrapper import with_bases
from shoal.core.errors import InputError
from shoal.data import Federation
from shoal.engine import Algorithm, DeployedModels, Engine
from shoal.forgetting import Continue
from shoal.metrics.intervals import Floats
from shoal.metrics.summary import Summary
from shoal.simulation.distillation import apply_release
from shoal.simulation.round_metrics import metric_values
from shoal.simulation.simulation import DEFAULT_RED_TEAM, LOSS_RED_TEAM, Simulation

LOG = logging.getLogger("shoal")

CONFIDENCE = 0.95
"""The confidence level of the intervals of differences."""


def baselines_of(simulation: Simulation, models: int) -> dict[str, Algorithm]:
    """Return the baselines of a simulation's clusters, by name.

    The result is empty with one model, and for a run that cannot be repeated.
    """
    if models == 1 or not simulation.replayable or simulation.start is not None:
        return {}
    grouped = any(isinstance(base, ByGroup) for base in with_bases(simulation.algorithm))
    federation = simulation.federation
    several = len(federation.groups_with_clients) > 1 and not federation.row_groups
    alternatives: list[Algorithm] = [FedAvg(), LocalOnly(), *([ByGroup()] if several and not grouped else [])]
    return {getattr(algorithm, "name"): algorithm for algorithm in alternatives}  # noqa: B009 - not of the protocol


@dataclass(frozen=True)
class GroupValues:
    """The accuracy of one group's clients on test examples.

    Args:
        share: the group's fraction of the clients.
        values: the metric of each test example on its client's model, (M,) float64; if clients are unknown, the mean
            over the group's clients.
        owners: the client of each test example, (M,) int64; a different number per example if clients are unknown.
    """

    share: float
    values: Floats
    owners: np.ndarray


def group_values(deployed: DeployedModels, federation: Federation, engine: Engine) -> dict[str, GroupValues]:
    """Measure the deployed models for each group with clients, on the clients' test examples if known."""
    by_group: dict[str, GroupValues] = {}
    test, nobody = federation.test, torch.full((len(federation.test),), -1)
    client = nobody if test.client is None else test.client
    for g in federation.groups_with_clients:
        part, of_group = federation.group_shares[:, g], torch.nonzero(test.group == g).flatten()
        inside = part > 0
        rows = of_group[torch.isin(client[of_group], federation.ids[inside])]
        known = len(rows) > 0
        rows, owners = (rows, client[rows]) if known else (of_group, torch.arange(len(of_group)))
        values = torch.zeros(len(rows), dtype=torch.float64)
        for k in torch.unique(deployed.model[inside]).tolist():
            users = inside & (deployed.model == k)
            mask = torch.isin(owners, federation.ids[users]) if known else torch.ones_like(owners, dtype=torch.bool)
            if bool(mask.any()):
                tested = replace(federation, test=test.take(rows[mask].to(test.y.device)))
                weight = 1.0 if known else float(part[users].sum() / part.sum())
                values[mask] += weight * metric_values(deployed.models[k], tested, engine)
        by_group[federation.groups[g]] = GroupValues(float(part.mean()), values.numpy(), owners.numpy())
    return by_group


def difference(ours: dict[str, GroupValues], theirs: dict[str, GroupValues]) -> tuple[float, float, float]:
    """Return the mean difference of accuracy over clients, and the bounds of its 95 % interval.

    The paired units are clients if the examples' clients are known, otherwise examples. The interval uses Student's t
    and the variance of a ratio estimator (Cochran 1977, section 9.1).

    >>> one = {"all": GroupValues(1.0, np.array([1.0, 1.0, 0.0, 1.0]), np.array([0, 0, 1, 1]))}
    >>> none = {"all": GroupValues(1.0, np.zeros(4), np.array([0, 0, 1, 1]))}
    >>> [round(value, 2) for value in difference(one, none)]
    [0.75, -2.43, 3.93]
    """
    total = sum(group.share for group in ours.values())
    mean = variance = 0.0
    free = 0
    for name, group in ours.items():
        gain, share = group.values - theirs[name].values, group.share / total
        _, owner = np.unique(group.owners, return_inverse=True)
        sums = np.bincount(owner, weights=gain - gain.mean())
        mean += share * float(gain.mean())
        if len(sums) > 1:
            variance += share**2 * float((sums**2).sum()) * len(sums) / (len(sums) - 1) / len(gain) ** 2
            free += len(sums) - 1
    half = float(stdtrit(free, 0.5 + CONFIDENCE / 2)) * math.sqrt(variance) if free else math.nan
    return mean, mean - half, mean + half


def compare_with_baselines(
    simulation: Simulation, engine: Engine, deployed: DeployedModels, baselines: Mapping[str, Algorithm]
) -> Summary:
    """Train a simulation's baselines, and compare their accuracy with the final models' accuracy.

    Each baseline uses the simulation's rounds, seed, local training and defences. A baseline that cannot run under the
    defences is skipped and logged. Baselines are not released, so the run's epsilon does not cover them.

    Args:
        simulation: the simulation, moved to the engine.
        baselines: the baselines by name, from `baselines_of`.

    Returns:
        ``baseline.NAME.accuracy``, ``.difference``, ``.low`` and ``.high`` over all clients and by group, and the
        simulation's accuracy ``baseline.clusters.accuracy``.
    """
    presence, federation = simulation.presence, simulation.federation
    present = federation if presence is None else federation.take(presence.present(simulation.last_round))
    ours = group_values(deployed, present, engine)
    overall, by_group = dict[str, float](), {name: dict[str, float]() for name in ours}
    red_team = LOSS_RED_TEAM if federation.classes is None else DEFAULT_RED_TEAM
    for name, algorithm in baselines.items():
        try:
            final = train_alone(replace(simulation, algorithm=algorithm, coordinator=None, red_team=red_team), engine)
        except InputError as error:
            LOG.info("baseline '%s' is left out: %s", name, error)
            continue
        theirs = group_values(final, present, engine)
        LOG.info("baseline '%s': accuracy %.3f", name, mean_accuracy(theirs))
        overall |= _metrics(name, ours, theirs)
        for group in ours if len(ours) > 1 else ():
            by_group[group] |= _metrics(name, {group: ours[group]}, {group: theirs[group]})
    if overall:
        overall["baseline.clusters.accuracy"] = mean_accuracy(ours)
    return Summary(overall=overall, by_group=by_group)


def train_alone(simulation: Simulation, engine: Engine) -> DeployedModels:
    """Train a simulation without attacks, measurements or recording, and return its deployed models."""
    off = {"reference_federations": 0, "record_updates": 0, "view": "outsider", "attacks": (), "metrics": ()}
    alone = replace(simulation, canaries=None, forgetting=Continue(), **off)
    training = alone.on(engine)
    *_, (state, _report) = training.rounds(training.start(), alone.last_round)
    present = training.present(state.round)
    return training.take(present).deployed_models(apply_release(alone.release, training, state).take(present))[0]


def mean_accuracy(values: dict[str, GroupValues]) -> float:
    """Return the mean accuracy over the clients of the groups in ``values``."""
    total = sum(group.share for group in values.values())
    return sum(group.share * float(group.values.mean()) for group in values.values()) / total


def _metrics(name: str, ours: dict[str, GroupValues], theirs: dict[str, GroupValues]) -> dict[str, float]:
    mean, low, high = difference(ours, theirs)
    figures = {"accuracy": mean_accuracy(theirs), "difference": mean, "low": low, "high": high}
    return {f"baseline.{name}.{figure}": value for figure, value in figures.items()}
