"""How exposed each client is: by the strongest attack that was run, on the models that it trained."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shoal.attacks import MembershipAttack
from shoal.data import Federation
from shoal.simulation.attack_metrics import AttackMetrics

CONFIDENCE = 0.95
"""Of a client's interval. It is of the largest of several attacks' accuracies, so each attack's interval is of
``1 - (1 - CONFIDENCE) / attacks`` (Bonferroni)."""

PART = 2**20
"""Pairs of a client and a model that are looked at at once."""


def title_of(attack: MembershipAttack) -> str:
    """What an attack is called in tables."""
    return str(getattr(attack, "title", type(attack).__name__))


def exposure_of_clients(
    audits: Mapping[str, AttackMetrics], trainers: NDArray[np.bool_], federation: Federation
) -> dict[str, NDArray]:
    """Columns of `clients.csv`, (N,) each.

    ``exposure``: the largest balanced accuracy of an attack, each averaged over its fits, on a model that the client
    trained, so that who leaves an exposed model late is not called safe; NaN for a client that never trained.
    ``exposure_low``: the lower end of its interval. ``attack``: which attack. ``exceeded``: whether ``exposure_low`` is
    above the client's threshold.

    Args:
        audits: what each attack finds about the same models, by the attacks' names.
        trainers: (N, S) bool, who trained which model.
        federation: that was audited.
    """
    names, models = [*audits, "none"], trainers.shape[1]
    confidence = 1 - (1 - CONFIDENCE) / len(audits)
    measured = [[audit.of_cluster(s, confidence=confidence) for s in range(models)] for audit in audits.values()]
    accuracy = np.array([[each.accuracy for each in row] for row in measured])
    low = np.array([[each.low for each in row] for row in measured])
    strongest = np.where(np.isnan(accuracy), -np.inf, accuracy).argmax(axis=0)
    of_model, low_of_model = accuracy[strongest, np.arange(models)], low[strongest, np.arange(models)]
    worst, known = _worst(trainers, of_model)
    exposure = np.where(known, of_model[worst], np.nan)
    exposure_low = np.where(known, low_of_model[worst], np.nan)
    return {
        "exposure": exposure,
        "exposure_low": exposure_low,
        "attack": np.array(names)[np.where(known, strongest[worst], len(audits))],
        "exceeded": exposure_low > federation.preferences.threshold.numpy(),
    }


def _worst(trainers: NDArray[np.bool_], of_model: NDArray[np.float64]) -> tuple[NDArray, NDArray[np.bool_]]:
    """(N,) the most exposed of the models that each client trained, by their values (S,), and whether it has any."""
    measured = ~np.isnan(of_model)
    worst, known = np.zeros(len(trainers), dtype=np.int64), np.zeros(len(trainers), dtype=bool)
    # Some clients at a time: with a model for each client N S numbers would be more than all else at the end of a run.
    size = max(1, PART // max(1, len(of_model)))
    for first in range(0, len(trainers), size):
        some = slice(first, first + size)
        measurable = trainers[some] & measured
        worst[some] = np.where(measurable, of_model, -np.inf).argmax(axis=1)
        known[some] = measurable.any(axis=1)
    return worst, known
