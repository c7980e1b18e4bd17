"""Which of the two backends trains a model, and which cannot."""

from typing import Literal

from torch import nn

from shoal.core.errors import require
from shoal.engine.local_sgd import LocalSGD
from shoal.engine.vmap_backend import prefers_vmap
from shoal.models.dropout import seeded_dropouts
from shoal.models.model import Model

Backend = Literal["loop", "vmap"]


def resolve_backend(model: Model, local: LocalSGD | None = None) -> Backend:
    """The faster backend for a model on a CPU, by the rule of `vmapped.fits`; the loop for dropout and private steps.

    >>> resolve_backend(Model(lambda: nn.Linear(2, 3)))
    'vmap'
    """
    network = model.network()
    only_loop = bool(seeded_dropouts(network)) or (local is not None and local.private)
    return "vmap" if not only_loop and prefers_vmap(model.layout, network) else "loop"


def check_backend(backend: Backend | None, model: Model, local: LocalSGD | None = None) -> None:
    """Raise `InputError` where a backend that somebody asked for cannot train ``model``, or not by ``local``."""
    if backend != "vmap":
        return
    network = model.network()
    for kind, name in ((nn.modules.batchnorm._NormBase, "batch norm"), (nn.RNNBase, "recurrent layers")):
        found = any(isinstance(module, kind) for module in network.modules())
        require(not found, f'\'engine.backend\' = "vmap" cannot train {name}; use "loop"')
    require(not seeded_dropouts(network), '\'engine.backend\' = "vmap" cannot train dropout; use "loop"')
    require(
        local is None or not local.private,
        "'engine.backend' = \"vmap\" cannot clip gradients, which 'defenses.dp_sgd' needs; use \"loop\"",
    )
