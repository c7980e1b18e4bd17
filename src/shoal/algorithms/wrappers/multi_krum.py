"""Multi-Krum: robust merging by the mean of the most similar updates.

Source: Blanchard et al. 2017, arXiv:1703.02757, sections 4 and 6 (Multi-Krum).
"""

from typing import ClassVar, Literal

import torch
from torch import Tensor

from shoal.algorithms.clusters.ifca import IFCA
from shoal.algorithms.wrappers.robust_merging import RobustMerging
from shoal.core.settings import Count, Positive, settings
from shoal.engine import Algorithm


@settings
class MultiKrum(RobustMerging):
    """Robust merging by the mean of the m updates with the smallest scores.

    The score of an update is the sum of squared distances to its n - f - 2 nearest updates. Of the n clients in a
    cluster, f may be malicious. The paper's guarantee requires n >= 2 f + 3, so a cluster with fewer clients uses f =
    ``(n - 3) // 2``. A cluster with fewer than three clients uses the plain mean. See `RobustMerging`.

    Args:
        base: the algorithm that trains the models and assigns clients to clusters.
        byzantine: the number f of malicious clients to tolerate per cluster.
        selected: the number m of updates to average; n - f by default. Krum is the special case m = 1.

    Example:
        >>> import torch, shoal
        >>> shoal.MultiKrum(byzantine=1).merge(torch.tensor([[1.0], [2.0], [3.0], [2.0], [900.0]]))
        tensor([2.])
    """

    base: Algorithm = IFCA()
    byzantine: Count = 2
    selected: Positive | None = None
    name: Literal["multi-krum"] = "multi-krum"
    title: ClassVar[str] = "Multi-Krum"

    def merge(self, updates: Tensor) -> Tensor:
        count = len(updates)
        if count < 3:
            return updates.mean(dim=0)
        liars = min(self.byzantine, (count - 3) // 2)
        distances = torch.cdist(updates, updates, compute_mode="donot_use_mm_for_euclid_dist").square()
        # The distance to itself, 0, is among the nearest.
        nearest = distances.sort(dim=1).values[:, : count - liars - 1]
        selected = nearest.sum(dim=1).argsort(stable=True)[: self.selected or count - liars]
        return updates[selected.sort().values].mean(dim=0)
