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
    measurable = np.logical_and(trainers, ~np.isnan(of_model))
    worst, known = np.where(measurable, of_model, -np.inf).argmax(axis=1), measurable.any(axis=1)
    exposure = np.where(known, of_model[worst], np.nan)
    exposure_low = np.where(known, low_of_model[worst], np.nan)
    return {
        "exposure": exposure,
        "exposure_low": exposure_low,
        "attack": np.array(names)[np.where(known, strongest[worst], len(audits))],
        "exceeded": exposure_low > federation.preferences.threshold.numpy(),
    }
