"""Whether the vmap backend computes what the loop does, tried on a few examples."""

import textwrap
import warnings

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.memory_format import to_channels_first, to_channels_last
from shoal.engine.vmap_gradients import VmapGradients
from shoal.models.model import Model

_START = Stream(0, ("structure",))

_TOLERANCE = 1e-3
"""Of the largest gradient's norm; float32 in another order of summation is off by 1e-6."""


def vmap_obstacle(model: Model, x: Tensor, y: Tensor) -> str | None:
    """Why vmap cannot train ``model`` on inputs x (B, ...) with labels y; None: it can, or the loop cannot either.

    Two owners, of two examples and of one, which is padded to two: vmap must compute their gradients, give those of
    the loop, and leave buffers alone, into which padded examples would go.
    """
    both = torch.zeros(2, dtype=torch.int64)
    both[-1] = len(x) - 1
    stored, alone = to_channels_last(x)[both], both[:1].expand(2)
    try:
        expected = [_gradients(model, stored[some], y[both][some]) for some in (slice(2), slice(1))]
    except Exception:  # noqa: BLE001 (what cannot be trained at all is refused elsewhere, with its reason)
        return None
    layout, rows = model.layout, model.init(_START).repeat(2, 1)
    rest = layout.views(rows)
    weights = {name: rest.pop(name) for name in expected[0]}
    share = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    given = torch.stack([stored, stored[alone]]), torch.stack([y[both], y[both][alone]])
    before = rows[:, layout.trainable :].clone()
    compute = VmapGradients(model.network, model.loss, torch.float32)
    try:
        with warnings.catch_warnings():
            # What vmap has no formula for it computes for one owner after another, and warns of.
            warnings.filterwarnings("error", message=".*batching rule")
            found = compute(model.network().train(), weights, rest, *given, share)
    except Exception as error:  # noqa: BLE001 (whatever PyTorch's vmap raises of a network that it does not know)
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
    network, layout = model.network().train(), model.layout
    named, row = dict(network.named_parameters()), model.init(_START)
    views = layout.views(row)
    trained = [slot.name for slot in layout.slots if slot.start < layout.trainable]
    for name in trained:
        named[name].data.copy_(views[name])
    loss = model.loss(network(to_channels_first(stored).clone()).float(), y).mean()
    gradients = torch.autograd.grad(loss, [named[name] for name in trained], materialize_grads=True)
    return dict(zip(trained, gradients, strict=True))
