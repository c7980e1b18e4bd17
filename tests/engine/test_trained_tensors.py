"""Local training of some tensors alone, and in phases, against PyTorch's own modules with the others frozen."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import Engine, LinearTerm, LocalSGD, TorchOptimizer
from shoal.models import Model

HEAD = frozenset({"output.weight", "output.bias"})
CLOSE = {"rtol": 1e-4, "atol": 1e-6}
PLAIN = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, weight_decay=0.05)
PLAIN_WITHOUT_DECAY = replace(PLAIN, weight_decay=0.0)
LOCALS = {
    "plain": PLAIN,
    "momentum": LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, weight_decay=0.05, momentum=0.5),
    "clipping": LocalSGD(epochs=2, batch_size=4, learning_rate=0.5, clip_norm=0.3),
    "full batches": LocalSGD(steps=3, batch_size="all", learning_rate=0.1),
    "adam": LocalSGD(epochs=1, batch_size=4, learning_rate=0.01, optimizer=TorchOptimizer("Adam")),
}


@dataclass(frozen=True)
class Clipped:
    """Per-example clipping without noise."""

    max_grad_norm: float
    noise_multiplier: float = 0.0
    poisson: bool = False


def trained(model: Model, federation, local, starts, term=None, then=(), **settings) -> torch.Tensor:
    everybody = torch.arange(len(federation))
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    ends = torch.empty(len(federation), model.layout.size)
    with Engine(model, threads=1, **settings) as engine:
        ready = engine.prepare(federation).clients
        give = (starts, everybody, ready, randomness, local, term)
        for owners, rows in engine.train_into(lambda owners, ends: (owners, ends.clone()), *give, then=then):
            ends[owners] = rows
    return ends


def by_hand(model: Model, federation, local, starts, names=HEAD, term=None, clip=None) -> torch.Tensor:
    randomness = local.randomness(federation.clients, federation.ids, Stream(2))
    ends = []
    for i, start in enumerate(starts):
        network = model.network()
        network.load_state_dict(model.state_dict(start))
        moved = {name: each for name, each in network.named_parameters() if name in names}
        kind = torch.optim.SGD if local.optimizer is None else torch.optim.Adam
        options = {"momentum": local.momentum} if local.optimizer is None else {}
        optimizer = kind(moved.values(), lr=local.learning_rate, weight_decay=local.weight_decay, **options)
        mine = federation.clients.owned(i)
        x, y = federation.clients.x[mine], federation.clients.y[mine]
        passes = randomness.orders[i] if len(randomness.orders[i]) else torch.arange(len(y)).expand(3, -1)
        for batch in [batch for order in passes for batch in order[: len(y)].split(local.batch(len(y)))]:
            optimizer.zero_grad()
            losses = nn.functional.cross_entropy(network(x[batch]), y[batch], reduction="none")
            if clip is None:
                losses.mean().backward()
            else:
                for loss in losses:
                    each = torch.autograd.grad(loss, list(moved.values()), retain_graph=True)
                    norm = torch.cat([part.flatten() for part in each]).norm()
                    for weights, part in zip(moved.values(), each, strict=True):
                        weights.grad = (0 if weights.grad is None else weights.grad) + (
                            part * min(1.0, clip / float(norm)) / local.batch(len(y))
                        )
            if local.clip_norm is not None:
                nn.utils.clip_grad_norm_(moved.values(), local.clip_norm)
            if term is not None:
                for name, weights in moved.items():
                    weights.grad += term.strength[i] * (weights.detach() - model.layout.views(term.anchors[i])[name])
            optimizer.step()
        ends.append(model.layout.pack(dict(network.named_parameters())).detach())
    return torch.stack(ends)


def starts_for(model: Model) -> torch.Tensor:
    return torch.stack([model.init(Stream(1)(k)) for k in range(6)])


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("kind", LOCALS)
def test_some_tensors_are_trained_and_the_others_stay_to_the_last_bit(mlp, build, kind, backend):
    local, starts = LOCALS[kind], starts_for(mlp)
    if kind == "adam" and backend == "vmap":
        return
    head = trained(mlp, build(), local_of(local), starts, backend=backend)
    torch.testing.assert_close(head, by_hand(mlp, build(), local, starts), **CLOSE)
    (where,) = mlp.layout.slices(HEAD)
    still = torch.ones(mlp.layout.size, dtype=torch.bool)
    still[where] = False
    assert torch.equal(head[:, still], starts[:, still])
    assert (head[:, where] != starts[:, where]).any(dim=1).all()


def local_of(local: LocalSGD, names=HEAD) -> LocalSGD:
    return replace(local, tensors=names)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_pull_and_decay_act_on_those_tensors_alone(mlp, build, backend):
    starts, draw = starts_for(mlp), torch.Generator().manual_seed(3)
    body = frozenset(slot.name for slot in mlp.layout.slots) - HEAD
    term = LinearTerm(torch.linspace(0, 1, 6), torch.randn(6, mlp.layout.size, generator=draw))
    for local in (PLAIN, LOCALS["momentum"]):
        ends = trained(mlp, build(), local_of(local, body), starts, term, backend=backend)
        torch.testing.assert_close(ends, by_hand(mlp, build(), local, starts, body, term), **CLOSE)


def test_tensors_apart_in_a_row_are_trained_together(mlp, build):
    starts, apart = starts_for(mlp), frozenset({"hidden.weight", "output.weight"})
    assert len(mlp.layout.slices(apart)) == 2
    ends = trained(mlp, build(), local_of(LOCALS["momentum"], apart), starts)
    torch.testing.assert_close(ends, by_hand(mlp, build(), LOCALS["momentum"], starts, apart), **CLOSE)


def test_all_tensors_by_name_are_all_tensors(model, build):
    starts, names = starts_for(model), frozenset(slot.name for slot in model.layout.slots)
    assert torch.equal(trained(model, build(), local_of(PLAIN, names), starts), trained(model, build(), PLAIN, starts))


@pytest.mark.parametrize("network", ["cnn", "mlp"])
def test_private_steps_clip_by_the_norm_of_what_is_trained(network, build, request):
    model = request.getfixturevalue(network)
    starts = starts_for(model)
    local = replace(PLAIN, weight_decay=0.0, gradient_privacy=Clipped(0.2))
    ends = trained(model, build(), replace(local, tensors=HEAD), starts)
    torch.testing.assert_close(ends, by_hand(model, build(), PLAIN_WITHOUT_DECAY, starts, clip=0.2), **CLOSE)
    # The same thread's network clips all of its gradients again afterwards.
    everything = frozenset(slot.name for slot in model.layout.slots)
    then = [(local.randomness(build().clients, build().ids, Stream(2)), local)]
    both = trained(model, build(), replace(local, tensors=HEAD), starts, then=then)
    torch.testing.assert_close(both, by_hand(model, build(), PLAIN_WITHOUT_DECAY, ends, everything, clip=0.2), **CLOSE)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_training_goes_on_from_where_the_one_before_it_ended(mlp, build, backend):
    starts, federation = starts_for(mlp), build()
    later = LocalSGD(epochs=1, batch_size=3, learning_rate=0.05)
    drawn = later.randomness(federation.clients, federation.ids, Stream(2))
    both = trained(mlp, federation, local_of(PLAIN), starts, then=[(drawn, later)], backend=backend)
    first = trained(mlp, federation, local_of(PLAIN), starts, backend=backend)
    assert torch.equal(both, trained(mlp, federation, later, first, backend=backend))


def test_a_tensor_that_the_model_has_not_is_named(mlp):
    with pytest.raises(InputError, match=r"the model has no tensors \['outptu.weight'\]"):
        mlp.layout.slices({"outptu.weight"})
