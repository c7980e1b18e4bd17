"""The local training of every client, from one start, by the engine."""

import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Engine, LocalSGD
from shoal.models import Model


def ends_of(model: Model, federation: Federation, local: LocalSGD, **engine: object) -> Tensor:
    """(N, P), the end of each client's training, which begins at ``model.init(Stream(1))``."""
    starts, which = model.init(Stream(1))[None], torch.zeros(len(federation), dtype=torch.int64)
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    ends = torch.empty(len(federation), model.layout.size)
    with Engine(model, **engine) as trained:
        clients = trained.prepare(federation).clients
        for owners, rows in trained.train(starts, which, clients, randomness, local):
            ends[owners] = rows
    return ends
