"""Local training by an engine, and its slow twin: one PyTorch network and optimizer per client, batch after batch."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Engine, LinearTerm, LocalRandomness, LocalSGD
from shoal.models import Model

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def starts_of(model: Model, federation: Federation) -> Tensor:
    """(N, P): clients start from two different models in turn."""
    return torch.stack([model.init(Stream(1)(i % 2)) for i in range(len(federation))])


def trained(
    model: Model,
    federation: Federation,
    local: LocalSGD,
    term: LinearTerm | None = None,
    *,
    starts: Tensor | None = None,
    weights: Tensor | None = None,
    then: Sequence[tuple[LocalRandomness, LocalSGD]] = (),
    **settings: Any,
) -> Tensor:
    """(N, P): the parameters that each client's training ends at."""
    starts = starts_of(model, federation) if starts is None else starts
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    ends = torch.empty(len(federation), model.layout.size)
    with Engine(model, **settings) as engine:
        shards = replace(engine.prepare(federation).clients, weights=weights)
        task = (starts, torch.arange(len(federation)), shards, randomness, local, term)
        for owners, rows in engine.train_into(lambda owners, ends: (owners, ends.clone()), *task, then=then):
            ends[owners] = rows
    return ends


def ends_of(model: Model, federation: Federation, local: LocalSGD, **engine: Any) -> Tensor:
    """(N, P): the end of each client's training, which begins at ``model.init(Stream(1))``."""
    return trained(model, federation, local, starts=model.init(Stream(1)).expand(len(federation), -1), **engine)


def by_hand(
    model: Model,
    federation: Federation,
    local: LocalSGD,
    term: LinearTerm | None = None,
    *,
    starts: Tensor | None = None,
    weights: Tensor | None = None,
    clip: float | None = None,
) -> Tensor:
    """(N, P): as `trained`; ``clip`` bounds the norm of each example's gradient."""
    starts = starts_of(model, federation) if starts is None else starts
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    ends = []
    for i, start in enumerate(starts):
        network = model.network()
        network.load_state_dict(model.state_dict(start))
        moved = {
            name: each for name, each in network.named_parameters() if local.tensors is None or name in local.tensors
        }
        optimizer = optimizer_of(local, list(moved.values()))
        rows = federation.clients.indices_of(i)
        x, y = federation.clients.x[rows], federation.clients.y[rows]
        weight = torch.ones(len(y)) if weights is None else weights[federation.clients.owners() == i]
        orders = randomness.orders[i]
        passes = orders if len(orders) else torch.arange(len(y)).expand(local.steps_of(len(y)), -1)
        batches = [batch for order in passes for batch in order[: len(y)].split(local.batch(len(y)))]
        for batch in batches[: local.steps_of(len(y))]:
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(network(x[batch]), y[batch], reduction="none")
            if clip is None:
                (weight[batch] * losses).mean().backward()
            else:
                add_clipped_gradients(losses, list(moved.values()), clip, local.batch(len(y)))
            if local.clip_norm is not None:
                nn.utils.clip_grad_norm_(moved.values(), local.clip_norm)
            if term is not None:
                offset = torch.zeros(model.layout.size) if term.offset is None else term.offset[i]
                for name, tensor in moved.items():
                    anchor, added = (model.layout.views(each)[name] for each in (term.anchors[i], offset))
                    assert tensor.grad is not None
                    tensor.grad += term.strength[i] * (tensor.detach() - anchor) + added
            optimizer.step()
        ends.append(model.layout.pack(dict(network.named_parameters()) | dict(network.named_buffers())).detach())
    return torch.stack(ends)


def optimizer_of(local: LocalSGD, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": local.learning_rate, "weight_decay": local.weight_decay}
    if local.optimizer is None:
        return torch.optim.SGD(parameters, momentum=local.momentum, **common)
    options = {key: tuple(each) if isinstance(each, list) else each for key, each in local.optimizer.options.items()}
    return getattr(torch.optim, local.optimizer.name)(parameters, **common, **options)


def add_clipped_gradients(losses: Tensor, parameters: list[nn.Parameter], clip: float, batch: int) -> None:
    for loss in losses:
        gradients = torch.autograd.grad(loss, parameters, retain_graph=True)
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        for parameter, gradient in zip(parameters, gradients, strict=True):
            share = gradient * min(1.0, clip / float(norm)) / batch
            parameter.grad = share if parameter.grad is None else parameter.grad + share
