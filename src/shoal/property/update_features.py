"""Features of updates for the property classifier: pooled absolute changes of the weights.

Source: Melis et al. 2019, arXiv:1805.04049, and its published code (`collect_grads`). Biases are left out. Of a
convolution's weight (O, I, H, W) the maximum over each kernel is kept, O * I numbers, unless these are more than 5,000,
and then nothing. A matrix (O, I) is kept whole up to 5,000 numbers; above that, only the maximum of each row. That code
stores matrices as (I, O), so that its rows are a layer's inputs; here, as in PyTorch, they are its outputs.
"""

import torch
from torch import Tensor

from shoal.core.layout import Layout

MAX_PER_WEIGHT = 5_000
"""The largest number of features that one weight gives."""


def extract_features(layout: Layout, updates: Tensor) -> Tensor:
    """The features (u, F) float16 of updates (u, P), each of L2 norm 1, or all zeros.

    Normalised, they say nothing about the length of an update.

    Source: Melis et al. 2019, arXiv:1805.04049, and its published code (`collect_grads`).

    Example:
        >>> import torch
        >>> from shoal.attacks import extract_features
        >>> from shoal.core.layout import Layout
        >>> layout = Layout.from_tensors({"w": torch.zeros(2, 3), "b": torch.zeros(2)}, {})
        >>> extract_features(layout, torch.tensor([[3.0, 0, 0, 0, -4.0, 0, 9, 9]]))
        tensor([[0.6001, 0.0000, 0.0000, 0.0000, 0.7998, 0.0000]], dtype=torch.float16)
    """
    parts = []
    for slot in layout.slots:
        if slot.start >= layout.trainable or len(slot.shape) < 2:
            continue
        view = slot.view(updates).abs()
        if len(slot.shape) > 2:
            if slot.shape[0] * slot.shape[1] > MAX_PER_WEIGHT:
                continue
            view = view.flatten(3).amax(dim=3)
        elif slot.size > MAX_PER_WEIGHT:
            view = view.amax(dim=2)
        parts.append(view.flatten(1))
    features = torch.cat(parts, dim=1).float() if parts else updates.new_zeros(len(updates), 0)
    return torch.nn.functional.normalize(features, dim=1).half().cpu()
