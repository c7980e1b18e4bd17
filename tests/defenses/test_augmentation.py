"""Augmentation: what becomes of an image, whose draws decide it, and how little it may be told to do."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from sgd_by_hand import ends_of
from shoal import Federation, simulate
from shoal.algorithms import FedAvg
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data.shifts import rotate
from shoal.defenses import DPSGD, Augmentation, TrainingSetup
from shoal.engine import ClusterRound, Engine, LocalSGD
from shoal.engine.backends.loop_backend import augmented
from shoal.models import Logistic, Model

LOCAL = LocalSGD(epochs=2, batch_size=4, learning_rate=0.2)
NONE = {"rotation": 0.0, "shift": 0.0}


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def images_of(count=40, height=8, width=6, channels=2):
    return torch.rand(count, height, width, channels, generator=drawn(1)).movedim(-1, 1)


def test_rotations_are_those_of_the_data_s_groups():
    images = images_of()
    found = Augmentation(rotation=30.0, shift=0.0).augmented(images, drawn())
    angles = 30 * (2 * torch.rand(40, 7, generator=drawn())[:, 0] - 1)
    torch.testing.assert_close(found, rotate(images, angles), rtol=1e-4, atol=1e-5)
    assert float(angles.min()) < -20 < 20 < float(angles.max())


def test_shifts_are_of_pixels_with_an_empty_border():
    # A ramp moves by as many pixels as its values change.
    ramp = torch.arange(100.0).view(10, 10)
    images = torch.stack([ramp % 10, ramp // 10]).expand(50, 2, 10, 10)
    found = Augmentation(rotation=0.0, shift=2.0).augmented(images, drawn())
    moved = (found - images)[:, :, 5, 5]
    assert bool((moved.abs() <= 2 + 1e-4).all())
    assert float(moved.min()) < -1.5 < 1.5 < float(moved.max())
    assert float((moved - moved.round()).abs().max()) > 0.3, "shifts are by parts of a pixel too"
    torch.testing.assert_close(found[:, 1, 5, 3:7], (found[:, 1, 5, 5:6]).expand(50, 4))
    across = Augmentation(rotation=0.0, shift=2.0).augmented(torch.ones(50, 1, 10, 10), drawn())
    assert float((across[:, 0, 2:8, 2:8] - 1).abs().max()) < 1e-4
    assert float(across.amin(dim=(1, 2, 3)).max()) < 1, "every image has an empty border somewhere"


def test_flips_mirror_one_image_in_two_and_at_half_strength_one_in_four():
    images = images_of(400)
    flip = Augmentation(**NONE, flip=True)
    for defense, share in ((flip, 0.5), (flip.with_strength(0.5), 0.25)):
        found = defense.augmented(images, drawn())
        mirrored = (found - images.flip(3)).abs().amax(dim=(1, 2, 3)) < 1e-5
        same = (found - images).abs().amax(dim=(1, 2, 3)) < 1e-5
        assert bool((mirrored ^ same).all())
        assert float(mirrored.float().mean()) == pytest.approx(share, abs=0.06)


def test_crops_stay_within_the_image_and_are_resized():
    ramp = torch.arange(64.0).expand(64, 64)
    images = torch.stack([ramp, ramp.T]).expand(200, 2, 64, 64) + 1
    found = Augmentation(**NONE, crop=0.5).augmented(images, drawn())
    slope = (found[:, 0, 32, 40] - found[:, 0, 32, 24]) / 16
    assert bool(((slope >= 0.5 - 1e-3) & (slope <= 1 + 1e-3)).all())
    assert float(slope.min()) < 0.55
    assert float(slope.max()) > 0.95
    torch.testing.assert_close((found[:, 1, 40, 32] - found[:, 1, 24, 32]) / 16, slope, rtol=1e-3, atol=1e-3)
    # Nothing from outside: all but the outermost half pixel is at least the smallest value.
    assert float(found[:, :, 1:-1, 1:-1].min()) >= 1
    assert float(found[:, :, 1:-1, 1:-1].max()) <= 64


def test_every_image_has_draws_of_its_own_and_strength_scales_them():
    same = images_of(1).expand(30, -1, -1, -1)
    full = Augmentation(20.0, 2.0, crop=0.3)
    found = full.augmented(same, drawn())
    assert len({each.sum().item() for each in found}) == 30
    half = Augmentation(10.0, 1.0, crop=0.15).augmented(same, drawn())
    torch.testing.assert_close(full.with_strength(0.5).augmented(same, drawn()), half)
    assert full.with_strength(0.5).with_strength(0.5) == full.with_strength(0.25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shape_type_and_the_given_images_stay(dtype):
    images = images_of().to(dtype)
    before = images.clone()
    found = Augmentation().augmented(images, drawn())
    assert (found.shape, found.dtype) == (images.shape, dtype)
    assert torch.equal(images, before)


@pytest.mark.parametrize("one", [{"rotation": 5.0}, {"shift": 1.0}, {"flip": True}, {"crop": 0.1}], ids=repr)
def test_one_transformation_is_enough_to_augment_and_none_leaves_training_as_it_is(one):
    at = ClusterRound(round=1, cluster=0)
    defense = Augmentation(**{**NONE, **one})
    assert defense.local(LOCAL, at).augmentation == defense
    assert defense.with_strength(0.0).local(LOCAL, at) == Augmentation(**NONE).local(LOCAL, at) == LOCAL


@pytest.mark.parametrize("batch_size", [4, "all"])
def test_each_pass_of_each_client_has_its_own_draws(mlp, build, batch_size):
    seen = []

    class Recorded(Augmentation):
        def transformed(self, images, draws):
            seen.append(super().transformed(images, draws))
            return seen[-1]

    local = replace(LOCAL, batch_size=batch_size, epochs=2, augmentation=Recorded())
    ends_of(mlp, build(), local, threads=1, backend="loop")
    assert len(seen) == 6 * 2
    sums = [sorted(each.sum(dim=(1, 2, 3)).tolist()) for each in seen]
    assert sums[0] != pytest.approx(sums[1])


def test_how_images_are_stored_changes_nothing(cnn, build):
    given = images_of(9)
    draws = torch.rand(9, 7, generator=drawn(7))
    last, first = (augmented(Augmentation(), each, draws) for each in (given, given.contiguous()))
    local = replace(LOCAL, augmentation=Augmentation())
    assert given.stride() != given.contiguous().stride()
    assert torch.equal(last, first)
    assert last.stride() == first.stride() == given.stride()
    # Pixels that are integers are the same as floats.
    federation = build()
    pixels = (255 * federation.clients.x).to(torch.uint8)
    small = replace(local, learning_rate=1e-4)
    as_bytes, as_floats = (
        replace(federation, clients=replace(federation.clients, x=each)) for each in (pixels, pixels.float())
    )
    assert torch.equal(ends_of(cnn, as_bytes, small), ends_of(cnn, as_floats, small))


def test_many_images_are_transformed_in_parts_and_all_of_them(mlp, build):
    counts = []

    class Counted(Augmentation):
        def transformed(self, images, draws):
            counts.append(len(images))
            return super().transformed(images, draws)

    local = LocalSGD(epochs=1, batch_size=700, augmentation=Counted())
    for backend, parts in (("loop", [1024, 1024, 52, 3, 3]), ("vmap", [706, 700, 700])):
        counts.clear()
        ends_of(mlp, build((2100, 3, 3)), local, threads=1, backend=backend)
        assert counts == parts


@pytest.mark.parametrize("sampling", ["shuffled", "poisson"])
def test_dp_sgd_clips_the_gradients_of_transformed_images(mlp, build, sampling):
    rule = DPSGD(0.5, 0.0, sampling=sampling)
    private = replace(LOCAL, steps=1, epochs=None, gradient_privacy=rule)
    both = replace(private, augmentation=Augmentation(40.0))
    assert not torch.allclose(ends_of(mlp, build(), both), ends_of(mlp, build(), private), atol=1e-4)
    moved = ends_of(mlp, build(), both) - mlp.init(Stream(1))
    # The step is a mean of gradients of at most 0.5; of a Poisson batch the divisor is the expected size.
    most = 0.2 * 0.5 * (1 if sampling == "shuffled" else 12 / 4)
    assert bool((moved.norm(dim=1) <= most + 1e-6).all())
    # A batch of no image is not asked for.
    alone = LocalSGD(steps=20, batch_size=1, gradient_privacy=rule, augmentation=Augmentation())
    ends_of(mlp, build(), alone)


def test_images_alone_can_be_transformed(build):
    rows = [(np.random.default_rng(i).normal(size=(8, 5)), np.arange(8) % 2) for i in range(3)]
    table = Federation.from_tensors(rows, test=rows[0])
    model = Model(lambda: Logistic(5, 2))
    with pytest.raises(InputError, match=r"'augmentation' needs images \(got rows\)"):
        simulate(table, model, FedAvg(), LOCAL, rounds=1, defenses=[Augmentation()])
    # Where nobody said what the examples are, the engine finds it out.
    local = replace(LOCAL, augmentation=Augmentation())
    with pytest.raises(InputError, match=re.escape("(got inputs of shape (5,))")):
        ends_of(model, table, local)


def test_images_are_augmented_once(mlp):
    setup = Augmentation().apply(TrainingSetup(mlp, LOCAL, kind="images"))
    with pytest.raises(InputError, match="'augmentation' must not be applied twice"):
        Augmentation(5.0).apply(setup)


class Centred(torch.nn.Module):
    """A network that mixes no examples, with a layer that no formula of per-example gradients knows."""

    def __init__(self):
        super().__init__()
        self.scale, self.linear = torch.nn.Parameter(torch.tensor(2.0)), torch.nn.Linear(6, 3)

    def forward(self, x):
        return self.linear((self.scale * x).flatten(1))


def by_hand(model, row, examples, augmentation, bound, *, copies=3, rate=0.3, steps=2):
    """Private steps without noise in a plain loop: each image's mean gradient over its copies is clipped once."""
    (x, y), network, draws = examples, model.network(), Stream(7)("augmentation").generator()
    torch.nn.utils.vector_to_parameters(row.clone(), network.parameters())
    for _ in range(steps):
        changed = augmentation.augmented(x.repeat_interleave(copies, dim=0), draws).split(copies)
        total = [torch.zeros_like(parameter) for parameter in network.parameters()]
        for images, label in zip(changed, y, strict=True):
            of_copies = [
                torch.autograd.grad(model.loss(network(image[None]), label[None]).sum(), [*network.parameters()])
                for image in images
            ]
            mean = [sum(parts) / copies for parts in zip(*of_copies, strict=True)]
            norm = sum(part.square().sum() for part in mean).sqrt()
            total = [one + part * min(1.0, float(bound / norm)) for one, part in zip(total, mean, strict=True)]
        with torch.no_grad():
            for parameter, change in zip(network.parameters(), total, strict=True):
                parameter.sub_(change, alpha=rate / len(y))
    return torch.nn.utils.parameters_to_vector(network.parameters()).detach()


@pytest.mark.parametrize("build", [lambda: Logistic(6, 3), Centred])
@pytest.mark.parametrize("bound", [0.5, 100.0])
def test_multiplicity_clips_the_mean_gradient_of_an_image_s_copies_once(build, bound):
    model, shift = Model(build), Augmentation(rotation=40.0, shift=1.0, multiplicity=3)
    images, labels = images_of(5, 2, 3, 1), torch.tensor([0, 1, 2, 0, 1])
    setup = TrainingSetup(model, LocalSGD(steps=2, batch_size="all", learning_rate=0.3))
    local = shift.apply(DPSGD(max_grad_norm=bound).apply(setup)).first_local()
    row, federation = model.init(Stream(0)), Federation.from_tensors([(images, labels)], test=(images, labels))
    randomness = replace(local.randomness(federation.clients, federation.ids, Stream(2)), seeds=torch.tensor([7]))
    with Engine(model, backend="loop") as engine:
        shards = engine.prepare(federation).clients
        ((_, ends),) = engine.train(row[None], torch.tensor([0]), shards, randomness, local)
    expected = by_hand(model, row, (images, labels), shift, bound)
    torch.testing.assert_close(ends[0], expected, rtol=1e-4, atol=1e-6)
    alone = by_hand(model, row, (images, labels), shift, bound, copies=1)
    assert float((expected - alone).norm()) > 1e-3
