"""The other clusters' models as reference models, which a clustered federation hands to every client.

A client is sent all K models to choose from. A record of one cluster was trained on by that cluster's model alone, so
the others say how difficult it is, as reference models do, and nothing has to be trained. They are models of other
groups, so a record's scores differ by more than membership.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.attacks.reference_scores import Floats, ReferenceScores


@dataclass(frozen=True, eq=False)
class OtherClusters:
    """A record's confidence on its own model minus its mean confidence on the others.

    Args:
        all_models: (M, K) logit-scaled confidence of each model on each record, K at least 2.

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
    least: ClassVar[int] = 0

    all_models: Floats

    def scores(self, records: ReferenceScores) -> Floats:
        """See `shoal.attacks.ReferenceAttack`; ``records`` are those of ``all_models``, in the same order."""
        own = np.arange(self.all_models.shape[1]) == records.model[:, None]
        others = np.where(own, 0, self.all_models).sum(axis=1) / (self.all_models.shape[1] - 1)
        return records.score - others
