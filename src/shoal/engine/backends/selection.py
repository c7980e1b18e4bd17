"""The choice between the loop backend and the vmap backend, and the reasons that exclude vmap."""

import logging
import textwrap
import warnings
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from shoal.core.errors import require
from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.data.shards import to_channels_first, to_channels_last
from shoal.engine.backends.dense_network import dense_network
from shoal.engine.backends.vmap_backend import vmap_gradients
from shoal.engine.local_sgd import LocalSGD
from shoal.models.layers import mixes_examples, seeded_dropouts
from shoal.models.model import Model
from shoal.models.validation import require_fits

LOG = logging.getLogger(__name__)

Backend = Literal["loop", "vmap"]
"""The method of training clients: one at a time on each thread, or many in one batched computation.

The results of both backends differ only in their last bits."""

_TOLERANCE = 1e-3
"""The tolerated error, relative to the largest gradient norm; another order of summation causes 1e-6."""


def loop_reason(local: LocalSGD, *, dense: bool) -> str | None:
    """Return the reason why vmap cannot train with the settings ``local``; ``None`` if vmap can.

    ``dense`` states whether the model has closed-form gradients (`dense_network.py`).
    """
    if local.private and not dense:
        return "cannot clip this network's per-example gradients for DP-SGD"
    if local.gradient_privacy is not None and local.private and local.gradient_privacy.poisson:
        return "cannot train on Poisson subsamples"
    if local.optimizer is not None:
        return "cannot train by an optimizer of torch.optim"
    return None if local.objective is None else "cannot minimise an objective other than the mean loss"


def _loop_reason(model: Model, local: LocalSGD | None) -> str | None:
    return None if local is None else loop_reason(local, dense=dense_network(model) is not None)


def prefers_vmap(layout: Layout, network: nn.Module) -> bool:
    """Return whether a network trains faster under vmap than in the loop on a CPU.

    In measurements (`docs/results/performance/measurements.md`), vmap is faster for networks of linear layers with at
    most 500,000 parameters, including frozen parameters.
    """
    owners = [module for module in network.modules() if any(True for _ in module.parameters(recurse=False))]
    size = layout.size + sum(p.numel() for p in network.parameters() if not p.requires_grad)
    return size <= 500_000 and all(isinstance(module, nn.Linear) for module in owners)


def resolve_backend(
    model: Model,
    local: LocalSGD | None = None,
    examples: tuple[Tensor, Tensor] | None = None,
    classes: int | None = None,
) -> Backend:
    """Return the faster backend for a model on a CPU by `prefers_vmap`, or the loop if vmap cannot train the model.

    Args:
        examples: a few inputs (B, ...) and labels for a trial of vmap; ``None`` decides by the network's layers only.
            If vmap's gradients differ from the loop's, the function returns the loop and logs the reason.
        classes: the number of classes; ``None`` for a regression.

    Raises:
        InputError: neither backend can train the model on the examples.
    """
    network = model.structure()
    only_loop = bool(seeded_dropouts(network)) or _loop_reason(model, local) is not None
    if only_loop or not prefers_vmap(model.layout, network):
        return "loop"
    obstacle = None if examples is None else vmap_obstacle(model, *examples)
    if examples is None or obstacle is None:
        return "vmap"
    require_fits(model, *examples, classes)
    LOG.warning(
        "backend 'loop' trains the clients, because backend 'vmap' cannot train this network with this loss: %s",
        obstacle,
    )
    return "loop"


def check_backend(backend: Backend | None, model: Model, local: LocalSGD | None = None) -> None:
    """Raise `InputError` if the requested backend cannot train ``model`` with the settings ``local``.

    Example:
        >>> import shoal
        >>> from torch import nn
        >>> from shoal.engine import check_backend
        >>> model = shoal.Model(lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)))
        >>> check_backend("loop", model)
        >>> check_backend("vmap", model)
        Traceback (most recent call last):
            ...
        shoal.core.errors.InputError: backend 'vmap' cannot train batch norm; use 'loop'
    """
    allowed = backend is None or backend in get_args(Backend)
    require(allowed, f"'backend' must be None, 'loop' or 'vmap' (got {backend!r})")
    if backend != "vmap":
        return
    network = model.structure()
    for module in network.modules():
        require(not mixes_examples(module), "backend 'vmap' cannot train batch norm; use 'loop'")
        require(not isinstance(module, nn.RNNBase), "backend 'vmap' cannot train recurrent layers; use 'loop'")
    require(not seeded_dropouts(network), "backend 'vmap' cannot train dropout; use 'loop'")
    reason = _loop_reason(model, local)
    require(reason is None, f"backend 'vmap' {reason}; use 'loop'")


def check_examples(backend: Backend, model: Model, x: Tensor, y: Tensor) -> None:
    """Raise `InputError` if a backend cannot train ``model`` on a few inputs x (B, ...) with labels y.

    The loop is needed for networks and losses that branch on input values, change buffers, or mix the examples of a
    batch.
    """
    obstacle = vmap_obstacle(model, x, y) if backend == "vmap" else None
    require(
        obstacle is None,
        f"backend 'vmap' cannot train this network with this loss; use backend='loop' ({obstacle})",
    )


def vmap_obstacle(model: Model, x: Tensor, y: Tensor) -> str | None:
    """Return the reason why vmap cannot train ``model`` on inputs x (B, ...) with labels y.

    The result is ``None`` if vmap can train the model, or if neither backend can. The trial trains two owners with
    three and two examples, and compares vmap's gradients with the loop's.
    """
    if dense_network(model) is not None:  # Closed forms do not use torch.func, which takes a second to load.
        return None
    # The last example twice; the padding of the second owner is the first example.
    full, padded = torch.tensor([0, 1, 1]) % len(x), torch.tensor([0, 1, 0]) % len(x)
    stored = to_channels_last(x)
    try:
        expected = [_mean_gradients(model, stored[rows], y[rows]) for rows in (full, padded[:2])]
    except Exception:  # `require_fits` rejects models that no backend can train.
        return None
    layout, params = model.layout, model.init(Stream(0, ("structure",))).repeat(2, 1)
    rest = layout.views(params)
    weights = {name: rest.pop(name) for name in expected[0]}
    share = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [1 / 2, 1 / 2, 0]])
    both = torch.stack([full, padded])
    before = params[:, layout.trainable :].clone()
    network = model.structure().train()
    try:
        with warnings.catch_warnings():
            # Without a batching rule, vmap warns and computes owners one by one.
            warnings.filterwarnings("error", message=".*batching rule")
            gradients = vmap_gradients(network, model.loss, torch.float32, weights, rest, stored[both], y[both], share)
    except Exception as error:
        sentence = " ".join(str(error).removeprefix("vmap: ").split()).partition(". ")[0].rstrip(".")
        return f"PyTorch says: {textwrap.shorten(sentence or type(error).__name__, 140, placeholder=' …')}"
    if not torch.equal(params[:, layout.trainable :], before):
        return "it changes buffers in training"
    for i, true in enumerate(expected):
        size = max(float(gradient.norm()) for gradient in true.values())
        error = max(float((gradients[name][i] - gradient).norm()) for name, gradient in true.items())
        if error > _TOLERANCE * size:
            return "an example's output depends on the other examples of the batch"
    return None


def _mean_gradients(model: Model, stored: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Return the gradients of the mean loss by trained parameter, computed without vmap."""
    network = model.structure().train()
    trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    loss = model.loss(network(to_channels_first(stored).clone()).float(), y).mean()
    return dict(zip(trained, torch.autograd.grad(loss, [*trained.values()], materialize_grads=True), strict=True))
