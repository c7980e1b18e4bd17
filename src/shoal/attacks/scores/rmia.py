"""The robust membership-inference attack (RMIA), which compares a record's likelihood ratio with other records' ratios.

Source: Zarifzadeh, Liu, Shokri, ICML 2024, arXiv:2312.03262, equations 2 to 4 and 10 (offline).
"""

from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from shoal.attacks.reference_scores import ReferenceScores
from shoal.attacks.scores.in_and_out import Side, in_and_out
from shoal.core.settings import Fraction, settings
from shoal.data.preferences import View
from shoal.metrics.intervals import Floats

Gamma = Annotated[float, Field(ge=1, strict=True, allow_inf_nan=False)]
"""A number, at least 1."""

TIE = 1e-6
"""The largest change of a score by the likelihood ratio, which orders records with equal fractions."""


@settings
class RMIA:
    """The fraction of comparison records with a likelihood ratio of at most 1 / gamma times the scored record's ratio.

    A record's likelihood ratio is its probability under the attacked model divided by its mean probability under the
    reference models. The IN and OUT models have equal weights in this mean. The comparison records are the population
    records that the same attacked model scored. Without a population, the same model's other records are compared, with
    mean probabilities over OUT models only. The fraction is 1/2 if there are no comparison records.

    Extension: the likelihood ratio orders records with equal fractions, and changes a score by at most `TIE`.

    Args:
        gamma: the factor between the two compared likelihood ratios, at least 1 (the paper uses 2). With gamma = 2 most
            fractions are near 0, and a threshold from other models is less accurate (docs/audit.md).
    """

    name: ClassVar[str] = "rmia"
    title: ClassVar[str] = "RMIA"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 2

    gamma: Gamma = 1.0

    def scores(self, records: ReferenceScores) -> Floats:
        """Return each record's fraction of comparison records, (M,), changed by at most `TIE`."""
        inside, outside = in_and_out(self, records, needs_in=True)
        log_out = _log_mean(outside)
        # The mean of equal means is exactly that mean.
        average = log_out + (np.logaddexp(_log_mean(inside) - log_out, 0.0) - np.log(2))
        return _fractions(records, average, log_out, _population_average(records), self.gamma)


@settings
class OfflineRMIA:
    """RMIA from OUT models alone, the reference models that did not train on the record.

    The mean probability over all models is estimated as ((1 + a) p_out + 1 - a) / 2, with p_out the mean probability
    over the reference models.

    Args:
        gamma: the factor between the two compared likelihood ratios, at least 1.
        a: the weight of p_out, in [0, 1]; at 1 the estimate is p_out.
    """

    name: ClassVar[str] = "rmia-offline"
    title: ClassVar[str] = "offline RMIA"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 1

    gamma: Gamma = 1.0
    a: Fraction = 0.33

    def scores(self, records: ReferenceScores) -> Floats:
        """Return each record's fraction of comparison records, (M,), changed by at most `TIE`."""
        _, outside = in_and_out(self, records, needs_in=False)
        average = self._all_models(_log_mean(outside))
        return _fractions(records, average, average, self._all_models(_population_average(records)), self.gamma)

    def _all_models(self, log_out: Floats) -> Floats:
        return np.log(((1 + self.a) * np.exp(log_out) + 1 - self.a) / 2) if self.a < 1 else log_out


def _fractions(
    records: ReferenceScores, average: Floats, average_z: Floats, population: Floats, gamma: float
) -> Floats:
    """Return the scores (M,) from log mean probabilities of records, comparison records (M,) and population (Z,)."""
    log_p = _log_sigmoid(records.score)
    ratio, as_z = log_p - average, log_p - average_z
    least, fraction = ratio - np.log(gamma), np.full(len(records), 0.5)
    for k in np.unique(records.model):
        rows, z = records.model == k, np.empty(0)
        if records.population is not None:
            z = (_log_sigmoid(records.population.score) - population)[records.population.model == k]
        if len(z):
            fraction[rows] = np.searchsorted(np.sort(z), least[rows], side="right") / len(z)
        elif rows.sum() > 1:
            below = np.searchsorted(np.sort(as_z[rows]), least[rows], side="right") - (as_z <= least)[rows]
            fraction[rows] = below / (rows.sum() - 1)
    return fraction + TIE * ratio / (1 + np.abs(ratio))


def _population_average(records: ReferenceScores) -> Floats:
    """Return the log of each population record's mean probability under all reference models, (Z,)."""
    if records.population is None:
        return np.empty(0)
    logs = _log_sigmoid(records.population.reference)
    return np.logaddexp.reduce(logs, axis=1) - np.log(records.references)


def _log_mean(side: Side) -> Floats:
    """Return the log of each record's mean probability on a side, (M,); exact for equal scores."""
    logs = np.where(side.mask, _log_sigmoid(side.scores), -np.inf)
    most = logs.max(axis=1, initial=-np.inf, keepdims=True)
    return most[:, 0] + np.log(np.exp(logs - most).sum(axis=1) / side.count)


def _log_sigmoid(x: Floats) -> Floats:
    return -np.logaddexp(0.0, -x)
