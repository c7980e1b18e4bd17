"""How exposed each client is: by the attack that decides, on the models that it trained."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from shoal.attacks import MembershipAttack
from shoal.audit.attack_metrics import AttackMetrics, strongest
from shoal.data import Federation

PART = 2**20
"""Pairs of a client and a model that are looked at at once."""


def title_of(attack: MembershipAttack) -> str:
    """What an attack is called in tables."""
    return str(getattr(attack, "title", type(attack).__name__))


def exposure_of_clients(
    audits: Mapping[str, AttackMetrics], trainers: NDArray[np.bool_], federation: Federation
) -> dict[str, NDArray]:
    """Columns of `clients.csv`, (N,) each.

    ``exposure``: the balanced accuracy of an attack, averaged over its fits, on the most exposed model that the client
    trained, so that who leaves an exposed model late is not called safe; NaN for a client that never trained. It is the
    first of ``audits``, unless another is certain to be stronger on a model; see `strongest`.
    ``exposure_low``: the lower end of its interval. ``exposure_null_high``: the balanced accuracy that 95 % of such
    attacks do not exceed where nothing is leaked. ``attack``: which attack. ``exceeded``: whether ``exposure_low`` is
    above the client's threshold.

    Args:
        audits: what each attack finds about the same models, by the attacks' names, the one chosen beforehand first.
        trainers: (N, S) bool, who trained which model.
        federation: that was audited.
    """
    models = [{name: audit.of_cluster(s) for name, audit in audits.items()} for s in range(trainers.shape[1])]
    decides = [strongest(found) for found in models]
    judged = [found[name] for found, (name, _) in zip(models, decides, strict=True)]
    of_model = np.array([each.accuracy for each in judged])
    worst, known = _worst(trainers, of_model)
    null_high, low = np.array([each.null_high for each in judged]), np.array([low for _, low in decides])
    exposure_low = np.where(known, low[worst], np.nan)
    return {
        "exposure": np.where(known, of_model[worst], np.nan),
        "exposure_low": exposure_low,
        "exposure_null_high": np.where(known, null_high[worst], np.nan),
        "attack": np.where(known, np.array([name for name, _ in decides])[worst], "none"),
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
