"""Defences of local training at a share of their strength, as a directive asks for it cluster by cluster."""

from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from directed_halves import Halves
from full_simulation import simulate_with
from sgd_by_hand import ends_of
from shoal.algorithms import FedAvg
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import CCL, DPSGD, L2, Augmentation, Flooding, Mixup, RelaxLoss, ShorterTraining, TrainingSetup
from shoal.engine import ClusterRound, Engine, LocalSGD, ScalableDefense, Training, resolve_backend
from shoal.engine.backends.selection import loop_reason
from shoal.models import Model

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
SCALABLE = [
    L2(0.1),
    DPSGD(0.5, 0.3),
    DPSGD(0.5, 0.3, sampling="poisson"),
    Augmentation(30.0, 1.0, flip=True, crop=0.3),
    Mixup(0.4),
    Flooding(1.2),
    RelaxLoss(1.2),
    CCL(beta=0.5),
    ShorterTraining(0.5),
]


@pytest.fixture(params=SCALABLE, ids=repr)
def defense(request):
    return request.param


@dataclass(frozen=True)
class Directed:
    """Applies a defence at the strength that the directive of a cluster says."""

    defense: ScalableDefense

    def local(self, local, at):
        return self.defense.with_strength(at.directive["strength"]).local(local, at)


def models_after(model, federation, strengths, defenses, *, threads=2, rounds=2, backend=None):
    """(2, P) after some rounds."""
    with Engine(model, threads=threads, backend=backend) as engine:
        training = Training(engine.prepare(federation), Halves(strengths), LOCAL, engine, Stream(5), defenses=defenses)
        return [state for state, _ in training.rounds(training.start(), rounds)][-1].models


@pytest.fixture(scope="module")
def directed(build):
    """The models after two rounds under directives of 0, with a defence or (None) without any, each computed once."""
    return cache(lambda network, each: models_after(Model(network), build(), (0, 0), (Directed(each),) if each else ()))


def test_strength_1_is_the_defence_itself_and_strength_0_is_none(request, directed, build, defense):
    # The networks (which decide the backend) alternate; below, both backends train each defence.
    model = request.getfixturevalue(("cnn", "mlp")[SCALABLE.index(defense) % 2])
    assert isinstance(defense, ScalableDefense)
    assert defense.with_strength(1) == defense
    assert defense.with_strength(0.5) != defense
    alone = models_after(model, build(), (0, 0), (defense,))
    assert torch.equal(models_after(model, build(), (1, 1), (Directed(defense),)), alone)
    assert torch.equal(directed(model.build, defense), directed(model.build, None))
    assert not torch.equal(alone, directed(model.build, None))


def test_defences_scaled_to_0_do_not_change_the_backend(mlp, defense):
    at, none = ClusterRound(1, 0), defense.with_strength(0)
    assert loop_reason(none.local(LOCAL, at), dense=False) is None
    assert none.with_strength(1) == none
    assert resolve_backend(mlp, none.local(LOCAL, at)) == "vmap"
    # Nor does it take from local training what that has already.
    decayed = replace(LOCAL, weight_decay=0.1)
    assert none.local(decayed, at).weight_decay == 0.1


def test_a_directive_moves_its_own_cluster_alone_and_the_loop_trains_what_vmap_cannot(mlp, directed, build, defense):
    plain = directed(mlp.build, defense)
    steered = models_after(mlp, build(), (0, 0.7), (Directed(defense),))
    assert torch.equal(steered[0], plain[0])
    assert not torch.allclose(steered[1], plain[1], rtol=1e-3, atol=1e-6)
    other = models_after(mlp, build(), (0, 0.7), (Directed(defense),), threads=1)
    assert torch.equal(other, steered)
    looped = models_after(mlp, build(), (0, 0.7), (Directed(defense),), backend="loop")
    torch.testing.assert_close(steered, looped, rtol=1e-4, atol=1e-5)


def test_clusters_that_vmap_cannot_train_are_looped_bit_for_bit(mlp, build):
    """Of one training of every client: the ends under an engine of vmap are the loop's, and no call before matters."""
    for defense in (DPSGD(0.5, 0.3), Mixup(0.4)):
        local = defense.local(LOCAL, ClusterRound(1, 0))
        assert torch.equal(*(ends_of(mlp, build(), local, backend=each) for each in ("vmap", "loop")))


@pytest.mark.parametrize(
    ("defense", "sentence"),
    [
        (DPSGD(0.5, 0.3), "backend 'vmap' cannot clip this network's per-example gradients for DP-SGD; use 'loop'"),
        *[
            (each, "backend 'vmap' cannot minimise an objective other than the mean loss; use 'loop'")
            for each in (Mixup(0.4), Flooding(0.5), RelaxLoss(0.5), CCL())
        ],
    ],
    ids=repr,
)
def test_a_fixed_defence_that_the_configured_backend_cannot_train_is_refused(mlp, build, defense, sentence):
    with pytest.raises(InputError, match=f"^{sentence}$"):
        simulate_with(build(), mlp, FedAvg(), LOCAL, rounds=1, defenses=[defense], backend="vmap")
    setup = defense.apply(TrainingSetup(mlp, LOCAL, kind="images"))
    assert resolve_backend(mlp, setup.first_local()) == "loop"


@pytest.mark.parametrize("strength", [-0.1, 1.5, float("nan")])
def test_strengths_are_shares(defense, strength):
    with pytest.raises(InputError, match=r"^'strength' must be in \[0, 1\] \(got "):
        defense.with_strength(strength)


def test_shadow_models_train_as_their_cluster_does(mlp, build):
    """`Training.local_of_clusters` has the strength of each cluster."""
    strengths, mixup = (0.0, 0.5), Mixup(0.4)
    with Engine(mlp) as engine:
        training = Training(build(), Halves(strengths), LOCAL, engine, Stream(5), defenses=(Directed(mixup),))
        state = [each for each, _ in training.rounds(training.start(), 1)][-1]
        first, second = training.local_of_clusters(state)
    assert (first.objective, second.objective) == (None, mixup.with_strength(0.5))
