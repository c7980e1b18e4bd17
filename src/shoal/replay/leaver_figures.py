"""Attacks that tell federations with a client from federations without it, and metrics of the remaining clients."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from shoal.attacks import RMIA, LiRA, Population, ReferenceAttack, ReferenceScores
from shoal.audit import record_exposure
from shoal.core.errors import InputError
from shoal.data import Federation
from shoal.engine import DeployedModels, Engine
from shoal.metrics.intervals import Bools, Estimate, Floats
from shoal.metrics.run_auc import auc_over_runs
from shoal.replay.reference_federations import AttackedRun, FederationScores
from shoal.simulation.round_metrics import metric_values


def attacks_on_leaver(scores: Floats, population: Floats) -> dict[str, Estimate]:
    """Return the AUC over federations of the plain score, RMIA and LiRA, by attack name.

    Federations 2 i had the client, and federations 2 i + 1 never had the client. RMIA and LiRA score each half of the
    federations with the other half as references.

    Args:
        scores: logit-scaled confidences of the client's training examples, (2 R, Q); R is even.
        population: logit-scaled confidences of examples that no federation trained on, (2 R, Z); Z may be 0.

    Returns:
        The AUC by attack name, without attacks that cannot be fitted because all federations have equal scores.
    """
    number = np.arange(len(scores))
    had, second = number % 2 == 0, number // 2 % 2 == 1
    found = {"score": auc_over_runs((scores[had], scores[~had]))}
    for attack in (RMIA(), LiRA()):
        try:
            # Leaving out one federation at a time would bias LiRA to an AUC of 0.45.
            halves = [_half(attack, scores, population, had, half) for half in (second, ~second)]
            found[attack.name] = auc_over_runs(*halves)
        except InputError:
            continue
    return found


def _half(
    attack: ReferenceAttack, scores: Floats, population: Floats, had: Bools, half: Bools
) -> tuple[Floats, Floats]:
    """Return the scores of a half's federations with the client, and of its federations without the client."""
    references, model = scores[~half].T, np.zeros(scores.shape[1] + population.shape[1], dtype=np.int64)
    trained = np.broadcast_to(had[~half], references.shape)

    def scored(run: int) -> Floats:
        z = Population(population[run], population[~half].T, model[len(references) :]) if population.size else None
        ours = scores[run], trained[:, 0], references, trained, model[: len(references)]
        return attack.scores(ReferenceScores(*ours, z))

    seen, unseen = (np.stack([scored(int(run)) for run in np.flatnonzero(half & side)]) for side in (had, ~had))
    return seen, unseen


def strongest_attack(attacks: Mapping[str, Estimate]) -> tuple[str, Estimate]:
    """Return the name and AUC of the decisive attack, with a simultaneous interval over all attacks.

    An AUC certainly below 0.5 is reversed. If an AUC is certainly above 0.5, the attack whose interval has the highest
    lower end decides. If no AUC is certainly above 0.5, the attack whose interval has the highest upper end decides.
    """
    wider = {name: estimate.among(len(attacks)) for name, estimate in attacks.items()}
    wider |= {name: Estimate(1 - e.value, 1 - e.high, 1 - e.low) for name, e in wider.items() if e.high < 0.5}
    certain = any(estimate.low > 0.5 for estimate in wider.values())
    name = max(wider, key=lambda name: wider[name].low if certain else wider[name].high)
    return name, wider[name]


def exposures_of_others(others: AttackedRun, trained: Sequence[FederationScores]) -> tuple[Floats, Floats]:
    """Return the mean exposure of each client's records before the departure and at the end, each (N,).

    A client without records has the exposure NaN.
    """
    count, member = len(others.records), np.stack([each.member.numpy() for each in trained], axis=1)
    client, one = others.records.client[:count].numpy(), np.zeros(2 * count, dtype=np.int64)

    def exposure(scores: Sequence[Tensor]) -> Floats:
        score = np.stack([each.numpy() for each in scores], axis=1)
        matrix = ReferenceScores(score[:, 0], member[:, 0], score[:, 1:], member[:, 1:], one)
        of_records = pd.Series(record_exposure(matrix, None)[0][:count]).groupby(client).mean()
        return np.asarray(of_records.reindex(range(len(others.simulation.federation))), dtype=np.float64)

    return exposure([each.trajectory[0] for each in trained]), exposure([each.score for each in trained])


def client_accuracies(deployed: DeployedModels, federation: Federation, engine: Engine) -> Floats:
    """Return the accuracy of each client's model on test examples of the client, or of the client's group, (N,)."""
    test, found = federation.test, np.full(len(federation), np.nan)
    values = [metric_values(model, federation, engine) for model in deployed.models]
    for i, (k, g) in enumerate(zip(deployed.model.tolist(), federation.group.tolist(), strict=True)):
        rows = test.group == g if test.client is None else test.client == federation.ids[i]
        found[i] = float(values[k][rows].mean())
    return found
