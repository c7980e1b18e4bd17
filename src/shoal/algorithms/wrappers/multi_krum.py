"""Multi-Krum: the mean of the updates that are nearest to their neighbours.

Source: Blanchard, El Mhamdi, Guerraoui, Stainer, NeurIPS 2017, arXiv:1703.02757, sections 4 and 6 (Multi-Krum).
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
    """A cluster's model moves by the mean of the m updates with the lowest scores.

    The score of an update is the sum of its squared distances to its n - f - 2 nearest updates, if f of the n clients
    may lie. The paper's guarantee needs n >= 2 f + 3; in a smaller cluster f is ``(n - 3) // 2``, and with fewer than
    three clients the model moves by the mean. See `RobustMerging`.

    Args:
        base: trains the models, and says whose updates are merged.
        byzantine: f, in each cluster.
        selected: m; left out: n - f. With 1 it is Krum.

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
