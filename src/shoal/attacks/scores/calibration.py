"""The loss as a score, and scores calibrated by the difficulty of the record.

Source: Yeom, Giacomelli, Fredrikson, Jha 2018, arXiv:1709.01604 (loss); Watson, Guo, Cormode, Sablayrolles, ICLR 2022,
arXiv:2111.08440, equation 3 (difficulty calibration, here on the logit-scaled confidence). `OtherClusters` is ours.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.attacks.reference_scores import ReferenceScores
from shoal.attacks.scores.in_and_out import in_and_out
from shoal.core.settings import settings
from shoal.data.preferences import View
from shoal.metrics.intervals import Floats


@settings
class LossScore:
    """Minus the loss of the attacked model, -log(1 + exp(-score)).

    The threshold comes from `shoal.audit.reference_thresholds`.
    """

    name: ClassVar[str] = "loss"
    title: ClassVar[str] = "loss"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 0

    def scores(self, records: ReferenceScores) -> Floats:
        """Return one score per record in nats, (M,), at most 0."""
        return -np.logaddexp(0.0, -records.score)


@settings
class DifficultyCalibration:
    """The attacked model's score minus the mean score of the reference models that did not train on the record.

    For a record that every reference model trained on, the mean difference between OUT and IN scores is added to the
    reference models' scores.
    """

    name: ClassVar[str] = "calibration"
    title: ClassVar[str] = "difficulty calibration"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 1

    def scores(self, records: ReferenceScores) -> Floats:
        """Return one score per record in logits, (M,)."""
        _, outside = in_and_out(self, records, needs_in=False)
        return records.score - outside.mean


@dataclass(frozen=True, eq=False)
class OtherClusters:
    """A record's confidence on its own cluster's model minus its mean confidence on the other clusters' models.

    The attack needs no reference models, because a client of a clustered federation receives the models of all
    clusters.

    Args:
        all_models: the logit-scaled confidence of each model on each record, (M, K), with K at least 2.

    Example:
        >>> import numpy as np
        >>> from shoal import ReferenceScores
        >>> from shoal.attacks import OtherClusters
        >>> all_models, none = np.array([[3.0, 1.0, 0.0], [1.0, 1.0, 1.0]]), np.zeros((2, 0))
        >>> model = np.array([0, 2])  # which of the three scored each record
        >>> records = ReferenceScores(all_models[[0, 1], model], np.array([True, False]), none, none > 0, model)
        >>> OtherClusters(all_models).scores(records)
        array([2.5, 0. ])
    """

    name: ClassVar[str] = "other-clusters"
    title: ClassVar[str] = "other clusters' models"
    view: ClassVar[View] = "outsider"
    least: ClassVar[int] = 0

    all_models: Floats

    def scores(self, records: ReferenceScores) -> Floats:
        """Return one score per record, (M,), for ``records`` in the order of ``all_models``."""
        trained = np.arange(self.all_models.shape[1]) == records.model[:, None]
        differences = np.where(trained, 0.0, records.score[:, None] - self.all_models)
        return differences.sum(axis=1) / (self.all_models.shape[1] - 1)
