"""Which of the two backends trains a model, and which cannot."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from shoal.core.errors import InputError, require
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.vmap_backend import prefers_vmap
from shoal.models.dropout import seeded_dropouts
from shoal.models.model import Model

Backend = Literal["loop", "vmap"]
"""How clients are trained: one after another on each thread (`loop_backend.py`), or many at a time as one batched
computation (`vmap_backend.py`). Results differ in their last bits only."""


def needs_loop(local: LocalSGD) -> bool:
    """Whether only the loop backend can train by ``local``: private steps, an optimizer of PyTorch, augmentation, or an
    objective.
    """
    changed = local.augmentation is not None or local.objective is not None
    return local.private or local.optimizer is not None or changed


def resolve_backend(model: Model, local: LocalSGD | None = None) -> Backend:
    """The faster backend for a model on a CPU, by `prefers_vmap`; the loop where only the loop can train.

    Example:
        >>> from torch import nn
        >>> from shoal import Model
        >>> from shoal.engine import resolve_backend
        >>> resolve_backend(Model(lambda: nn.Linear(2, 3)))
        'vmap'
    """
    network = model.network()
    only_loop = bool(seeded_dropouts(network)) or (local is not None and needs_loop(local))
    return "vmap" if not only_loop and prefers_vmap(model.layout, network) else "loop"


def check_backend(backend: Backend | None, model: Model, local: LocalSGD | None = None) -> None:
    """Raise `InputError` where a backend that was asked for cannot train ``model``, or not by ``local``.

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
    known = get_args(Backend)
    require(backend is None or backend in known, f"'backend' must be None, 'loop' or 'vmap'; got {backend!r}")
    if backend != "vmap":
        return
    network = model.network()
    for kind, name in ((nn.modules.batchnorm._NormBase, "batch norm"), (nn.RNNBase, "recurrent layers")):
        present = any(isinstance(module, kind) for module in network.modules())
        require(not present, f"backend 'vmap' cannot train {name}; use 'loop'")
    require(not seeded_dropouts(network), "backend 'vmap' cannot train dropout; use 'loop'")
    if local is not None:
        require(not local.private, "backend 'vmap' cannot clip the gradients of examples, as DP-SGD needs; use 'loop'")
        require(local.optimizer is None, "backend 'vmap' trains by SGD alone, not by torch.optim; use 'loop'")
        require(local.augmentation is None, "backend 'vmap' cannot augment images; use 'loop'")
        require(
            local.objective is None, "backend 'vmap' cannot minimise another objective than the mean loss; use 'loop'"
        )


def check_loss(backend: Backend, model: Model, x: Tensor, y: Tensor) -> None:
    """Raise `InputError` where a backend cannot compute the loss of ``model`` on a few inputs x (B, ...) with labels y.

    Losses that look at their values, as `torch.nn.functional.gaussian_nll_loss` does, are the loop's.

    Example:
        >>> import torch, shoal
        >>> from torch import nn
        >>> from shoal.engine import check_loss
        >>> def careful(outputs, labels):
        ...     return shoal.squared_error(outputs, labels) if labels.min() >= 0 else outputs[:, 0]
        ...
        >>> model, x, y = shoal.Model(lambda: nn.Linear(1, 1), careful), torch.zeros(2, 1), torch.ones(2, 1)
        >>> check_loss("loop", model, x, y)
        >>> check_loss("vmap", model, x, y)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        shoal.core.errors.InputError: the model's loss cannot be computed for many clients at once, as ...
    """
    if backend != "vmap":
        return
    with torch.no_grad():
        outputs = model.network().eval()(x).float()
    try:
        torch.vmap(model.loss)(outputs[None], y[None])
    except RuntimeError as error:
        raise InputError(
            "the model's loss cannot be computed for many clients at once, as backend 'vmap' does; use backend='loop'"
        ) from error
