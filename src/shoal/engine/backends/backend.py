"""Which of the two backends trains a model, and which cannot."""

import logging
from typing import Literal, get_args

from torch import Tensor, nn

from shoal.core.errors import require
from shoal.engine.backends.vmap_backend import prefers_vmap
from shoal.engine.backends.vmap_trial import vmap_obstacle
from shoal.engine.local_sgd import LocalSGD
from shoal.models.dropout import seeded_dropouts
from shoal.models.model import Model
from shoal.models.validation import require_fits

LOG = logging.getLogger(__name__)

Backend = Literal["loop", "vmap"]
"""How clients are trained: one after another on each thread (`loop_backend.py`), or many at a time as one batched
computation (`vmap_backend.py`). Results differ in their last bits only."""


def needs_loop(local: LocalSGD) -> bool:
    """Whether only the loop backend can train by ``local``: private steps, an optimizer of PyTorch, augmentation, or an
    objective.
    """
    changed = local.augmentation is not None or local.objective is not None
    return local.private or local.optimizer is not None or changed


def resolve_backend(
    model: Model,
    local: LocalSGD | None = None,
    examples: tuple[Tensor, Tensor] | None = None,
    classes: int | None = None,
) -> Backend:
    """The faster backend for a model on a CPU, by `prefers_vmap`; the loop where only the loop can train.

    Args:
        model: what is trained.
        local: local training.
        examples: a few inputs (B, ...) and their labels, on which vmap is tried; where it cannot compute what the loop
            does, the loop trains, and a warning says why. None: the network's layers alone decide.
        classes: of these labels; None: those of a regression.

    Raises:
        InputError: neither backend can train the model on the examples.

    Example:
        >>> from torch import nn
        >>> from shoal import Model
        >>> from shoal.engine import resolve_backend
        >>> resolve_backend(Model(lambda: nn.Linear(2, 3)))
        'vmap'
    """
    network = model.network()
    only_loop = bool(seeded_dropouts(network)) or (local is not None and needs_loop(local))
    if only_loop or not prefers_vmap(model.layout, network):
        return "loop"
    obstacle = None if examples is None else vmap_obstacle(model, *examples)
    if examples is None or obstacle is None:
        return "vmap"
    require_fits(model, *examples, classes)
    LOG.warning(
        "clients are trained one after another (backend 'loop'), since the network and its loss cannot be computed for "
        "many at once (backend 'vmap'): %s",
        obstacle,
    )
    return "loop"


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


def check_examples(backend: Backend, model: Model, x: Tensor, y: Tensor) -> None:
    """Raise `InputError` where a backend cannot train ``model`` on a few inputs x (B, ...) with labels y.

    Networks and losses that decide by the values of their inputs, as `torch.nn.functional.gaussian_nll_loss` does, are
    the loop's, and so are those that change buffers or mix the examples of a batch.

    Example:
        >>> import torch, shoal
        >>> from torch import nn
        >>> from shoal.engine import check_examples
        >>> def careful(outputs, labels):
        ...     return shoal.squared_error(outputs, labels) if labels.min() >= 0 else outputs[:, 0]
        ...
        >>> model, x, y = shoal.Model(lambda: nn.Linear(1, 1), careful), torch.zeros(2, 1), torch.ones(2, 1)
        >>> check_examples("loop", model, x, y)
        >>> check_examples("vmap", model, x, y)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        shoal.core.errors.InputError: the network and its loss cannot be computed for many clients at once, as ...
    """
    obstacle = vmap_obstacle(model, x, y) if backend == "vmap" else None
    require(
        obstacle is None,
        "the network and its loss cannot be computed for many clients at once, as backend 'vmap' does; use "
        f"backend='loop' ({obstacle})",
    )
