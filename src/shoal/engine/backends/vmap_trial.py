"""Whether the vmap backend computes what the loop does, tried on a few examples."""

import textwrap
import warnings

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.memory_format import to_channels_first, to_channels_last
from shoal.engine.backends.vmap_gradients import VmapGradients
from shoal.models.model import Model

_TOLERANCE = 1e-3
"""Of the largest gradient's norm; float32 in another order of summation is off by 1e-6."""


def vmap_obstacle(model: Model, x: Tensor, y: Tensor) -> str | None:
    """Why vmap cannot train ``model`` on inputs x (B, ...) with labels y; None: it can, or the loop cannot either.

    Two owners, of three examples and of two, which are padded to three: vmap must compute their gradients, give those
    of the loop, and leave buffers alone, into which padded examples would go.
    """
    # The last example twice, and in the second owner's padding the first.
    full, padded = torch.tensor([0, 1, 1]) % len(x), torch.tensor([0, 1, 0]) % len(x)
    stored = to_channels_last(x)
    try:
        expected = [_gradients(model, stored[some], y[some]) for some in (full, padded[:2])]
    except Exception:  # What cannot be trained at all is refused elsewhere, with its reason.
        return None
    # The parameters that `Model.network` has.
    layout, rows = model.layout, model.init(Stream(0, ("structure",))).repeat(2, 1)
    rest = layout.views(rows)
    weights = {name: rest.pop(name) for name in expected[0]}
    share = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [1 / 2, 1 / 2, 0]])
    both = torch.stack([full, padded])
    before = rows[:, layout.trainable :].clone()
    compute = VmapGradients(model.network, model.loss, torch.float32)
    try:
        with warnings.catch_warnings():
            # What vmap has no formula for it computes for one owner after another, and warns of.
            warnings.filterwarnings("error", message=".*batching rule")
            found = compute(model.network().train(), weights, rest, stored[both], y[both], share)
    except Exception as error:
        said = " ".join(str(error).removeprefix("vmap: ").split()).partition(". ")[0].rstrip(".")
        return f"PyTorch says: {textwrap.shorten(said or type(error).__name__, 140, placeholder=' …')}"
    if not torch.equal(rows[:, layout.trainable :], before):
        return "it changes buffers in training"
    for i, true in enumerate(expected):
        size = max(float(each.norm()) for each in true.values())
        error = max(float((found[name][i] - each).norm()) for name, each in true.items())
        if error > _TOLERANCE * size:
            return "what it gives for an example depends on the others of the batch"
    return None


def _gradients(model: Model, stored: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Of the mean loss, by trained parameter, without vmap."""
    network = model.network().train()
    trained = {name: each for name, each in network.named_parameters() if each.requires_grad}
    loss = model.loss(network(to_channels_first(stored).clone()).float(), y).mean()
    return dict(zip(trained, torch.autograd.grad(loss, [*trained.values()], materialize_grads=True), strict=True))
