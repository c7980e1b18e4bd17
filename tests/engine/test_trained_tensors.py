"""Local training of some tensors alone, and in phases, against PyTorch's own modules with the others frozen."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from sgd_by_hand import CLOSE, by_hand, starts_of, trained
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.engine import LinearTerm, LocalSGD, TorchOptimizer

HEAD = frozenset({"output.weight", "output.bias"})
PLAIN = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, weight_decay=0.05)
LOCALS = {
    "plain": PLAIN,
    "momentum": LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, weight_decay=0.05, momentum=0.5),
    "clipping": LocalSGD(epochs=2, batch_size=4, learning_rate=0.5, clip_norm=0.3),
    "full batches": LocalSGD(steps=3, batch_size="all", learning_rate=0.1),
    "adam": LocalSGD(epochs=1, batch_size=4, learning_rate=0.01, optimizer=TorchOptimizer("Adam")),
}
ON_BACKENDS = [
    (kind, backend) for kind in LOCALS for backend in ("loop", "vmap") if (kind, backend) != ("adam", "vmap")
]


def names_of(model) -> frozenset[str]:
    return frozenset(slot.name for slot in model.layout.slots)


@pytest.mark.parametrize(("kind", "backend"), ON_BACKENDS)
def test_untrained_tensors_stay_to_the_last_bit(mlp, build, kind, backend):
    local, starts = replace(LOCALS[kind], tensors=HEAD), starts_of(mlp, build())
    head = trained(mlp, build(), local, backend=backend)
    torch.testing.assert_close(head, by_hand(mlp, build(), local), **CLOSE)
    (place,) = mlp.layout.slices(HEAD)
    untrained = torch.ones(mlp.layout.size, dtype=torch.bool)
    untrained[place] = False
    assert torch.equal(head[:, untrained], starts[:, untrained])
    assert (head[:, place] != starts[:, place]).any(dim=1).all()


@pytest.mark.parametrize("backend", ["loop", "vmap"])
@pytest.mark.parametrize("kind", ["plain", "momentum"])
def test_a_proximal_term_and_decay_act_on_trained_tensors_alone(mlp, build, kind, backend):
    draw = torch.Generator().manual_seed(3)
    term = LinearTerm(torch.linspace(0, 1, 6), torch.randn(6, mlp.layout.size, generator=draw))
    local = replace(LOCALS[kind], tensors=names_of(mlp) - HEAD)
    ends = trained(mlp, build(), local, term, backend=backend)
    torch.testing.assert_close(ends, by_hand(mlp, build(), local, term), **CLOSE)


def test_tensors_apart_in_a_row_are_trained_together(mlp, build):
    local = replace(LOCALS["momentum"], tensors=frozenset({"hidden.weight", "output.weight"}))
    assert local.tensors is not None
    assert len(mlp.layout.slices(local.tensors)) == 2
    torch.testing.assert_close(trained(mlp, build(), local), by_hand(mlp, build(), local), **CLOSE)


def test_all_tensors_by_name_are_all_tensors(model, build):
    by_name = replace(PLAIN, tensors=names_of(model))
    assert torch.equal(trained(model, build(), by_name), trained(model, build(), PLAIN))


@pytest.mark.parametrize("network", ["cnn", "mlp"])
def test_private_steps_clip_by_the_norm_of_the_trained_gradients(network, build, request):
    model = request.getfixturevalue(network)
    clipping = SimpleNamespace(max_grad_norm=0.2, noise_multiplier=0.0, poisson=False)
    whole = replace(PLAIN, weight_decay=0.0, gradient_privacy=clipping)
    head = replace(whole, tensors=HEAD)
    ends = trained(model, build(), head)
    torch.testing.assert_close(ends, by_hand(model, build(), head, clip=0.2), **CLOSE)
    # The same thread's network clips all of its gradients again afterwards.
    then = [(whole.randomness(build().clients, build().ids, Stream(2)), whole)]
    both = trained(model, build(), head, then=then, threads=1)
    torch.testing.assert_close(both, by_hand(model, build(), whole, starts=ends, clip=0.2), **CLOSE)


@pytest.mark.parametrize("backend", ["loop", "vmap"])
def test_a_further_training_starts_at_the_end_of_the_one_before(mlp, build, backend):
    federation, head = build(), replace(PLAIN, tensors=HEAD)
    later = LocalSGD(epochs=1, batch_size=3, learning_rate=0.05)
    drawn = later.randomness(federation.clients, federation.ids, Stream(2))
    both = trained(mlp, federation, head, then=[(drawn, later)], backend=backend)
    first = trained(mlp, federation, head, backend=backend)
    assert torch.equal(both, trained(mlp, federation, later, starts=first, backend=backend))


def test_an_unknown_tensor_is_named(mlp):
    with pytest.raises(InputError, match=r"the model has no tensors \['outptu.weight'\]"):
        mlp.layout.slices({"outptu.weight"})
