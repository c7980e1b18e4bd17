"""Shifts of groups: rotation against scipy.ndimage, brightness by hand, labels, and what a group may be."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import ndimage
from torch import Tensor

from shoal.config.build import build
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation, Group, ImageDataset, Partition, Preferences, TextDataset, partition_dataset
from shoal.data.shifts import brighten, rotate, shift_inputs

SQUARE, WIDE, TALL = (3, 1, 28, 28), (2, 3, 9, 16), (2, 1, 12, 7)
SHAPES = pytest.mark.parametrize("shape", [SQUARE, WIDE, TALL], ids=["square", "wide", "tall"])


def random_images(*shape: int) -> Tensor:
    return torch.rand(shape, generator=Stream(0)("pictures").generator())


def by_scipy(image: Tensor, degrees: float) -> Tensor:
    """(H, W), turned counter-clockwise as seen, bilinear, zero outside."""
    rotated = ndimage.rotate(
        image.double().numpy(), degrees, axes=(1, 0), reshape=False, order=1, mode="grid-constant", cval=0
    )
    return torch.from_numpy(np.ascontiguousarray(rotated)).float()


@SHAPES
@pytest.mark.parametrize("degrees", [0.0, 7.5, 25.0, 45.0, 90.0, 133.0, 180.0, -30.0, 360.0])
def test_rotation_is_scipy_s(shape: tuple[int, ...], degrees: float) -> None:
    images = random_images(*shape)
    kept = images.clone()
    rotated = rotate(images, torch.full((shape[0],), degrees))
    assert torch.equal(images, kept)
    assert rotated.shape == images.shape
    for ours, image in zip(rotated.flatten(0, 1), images.flatten(0, 1), strict=True):
        torch.testing.assert_close(ours, by_scipy(image, degrees), atol=2e-4, rtol=0)


def test_each_picture_turns_by_its_own_angle() -> None:
    images, degrees = random_images(4, 2, 11, 11), torch.tensor([0.0, 12.0, -50.0, 90.0])
    together = rotate(images, degrees)
    for i in range(4):
        torch.testing.assert_close(together[i : i + 1], rotate(images[i : i + 1], degrees[i : i + 1]))
    assert not torch.allclose(together[1], rotate(images[1:2], degrees[2:3])[0])


def test_rotation_in_chunks_is_rotation_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    images, degrees = random_images(7, 1, 6, 6), torch.linspace(0, 90, 7)
    whole = rotate(images, degrees)
    monkeypatch.setattr("shoal.data.shifts._CHUNK", 3)
    torch.testing.assert_close(rotate(images, degrees), whole)


def test_brightness_is_a_factor_clipped_to_one() -> None:
    images = torch.tensor([0.0, 0.2, 0.5, 1.0]).reshape(1, 1, 2, 2).repeat(3, 1, 1, 1)
    brightened = brighten(images, torch.tensor([0.5, 1.0, 4.0])).reshape(3, 4)
    expected = torch.tensor([[0, 0.1, 0.25, 0.5], [0, 0.2, 0.5, 1], [0, 0.8, 1, 1]])
    torch.testing.assert_close(brightened, expected)


def test_uniform_draws_are_scaled_to_angles_and_factors() -> None:
    images = random_images(3, 1, 8, 8)
    uniform = torch.tensor([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    rotated = Group("a", 1.0, rotation=(10, 50)).shift(images, uniform)
    torch.testing.assert_close(rotated, rotate(images, torch.tensor([10.0, 30.0, 50.0])))
    brighter = Group("a", 1.0, brightness=(0.5, 0.9)).shift(images, uniform)
    torch.testing.assert_close(brighter, brighten(images, torch.tensor([0.9, 0.7, 0.5])))
    both = Group("a", 1.0, rotation=(10, 50), brightness=(0.5, 0.9)).shift(images, uniform)
    torch.testing.assert_close(both, brighten(rotated, torch.tensor([0.9, 0.7, 0.5])))


# --- shifts per image and per client ------------------------------------------------------------------------------


def copies(image: Tensor, count: int) -> ImageDataset:
    """``count`` images that are all ``image`` (C, H, W) of bytes, so that they differ by their shift alone."""
    return ImageDataset("copies", image.expand(count, -1, -1, -1), 255, torch.zeros(count).long(), count, 1)


WHITE = torch.full((1, 1, 1), 255, dtype=torch.uint8)
MARKER = torch.zeros(1, 21, 21, dtype=torch.uint8)
MARKER[0, 10, 15:20] = 255  # a line from near the centre to the right, at 0 degrees


def angles(x: Tensor) -> Tensor:
    """The counter-clockwise angle in degrees of each marker in x (m, 1, 21, 21)."""
    place = torch.arange(21) - 10.0
    mass = x.sum((1, 2, 3))
    right, down = (x[:, 0].sum(1) * place).sum(1) / mass, (x[:, 0].sum(2) * place).sum(1) / mass
    return torch.rad2deg(torch.atan2(-down, right))


def shifted(group: Group, client: Tensor | None, image: Tensor = WHITE, seed: int = 0) -> Tensor:
    count = 40 if client is None else len(client)
    everybody = torch.zeros(count).long()
    return shift_inputs(copies(image, count), torch.arange(count), [group], everybody, Stream(seed), client)


@pytest.mark.parametrize("client", [None, torch.arange(40) // 8], ids=["of nobody", "of clients"])
def test_a_shift_per_image_is_drawn_by_its_index(client: Tensor | None) -> None:
    group, images = Group("a", 1.0, rotation=(5, 70), brightness=(0.2, 0.9)), 255 * random_images(40, 2, 8, 8)
    dataset = ImageDataset("any", images.byte(), 255, torch.zeros(40).long(), 40, 1)
    indices = torch.randperm(40, generator=Stream(1).generator())
    drawn = torch.rand(40, 2, generator=Stream(3)("shift").generator())[indices]
    found = shift_inputs(dataset, indices, [group], torch.zeros(40).long(), Stream(3), client)
    assert torch.equal(found, group.shift(dataset.pixels[indices].float() / 255, drawn))


def test_the_images_of_a_client_have_one_angle_and_another_client_another() -> None:
    client = torch.arange(60) % 12
    found = angles(shifted(Group("a", 1.0, rotation=(10, 80), shift_per="client"), client, MARKER))
    by_client = [found[client == i] for i in range(12)]
    assert all(each.max() - each.min() < 0.01 for each in by_client)
    firsts = torch.stack([each[0] for each in by_client])
    assert firsts.sort().values.diff().min() > 0.02
    assert firsts.min() > 10 - 0.5
    assert firsts.max() < 80 + 0.5
    assert firsts.max() - firsts.min() > 30
    # Beside it, the same with an angle per image.
    each = angles(shifted(Group("a", 1.0, rotation=(10, 80)), client, MARKER))
    assert all(each[client == i].max() - each[client == i].min() > 5 for i in range(12))


def test_a_client_s_shift_depends_on_its_id_alone() -> None:
    group = Group("a", 1.0, brightness=(0.2, 0.9), shift_per="client")
    factors = shifted(group, torch.arange(40)).flatten()
    order = torch.randperm(40, generator=Stream(1).generator())
    assert torch.equal(shifted(group, order).flatten(), factors[order])
    assert torch.equal(shifted(group, torch.tensor([7, 3, 7])).flatten(), factors[[7, 3, 7]])
    assert not torch.equal(shifted(group, torch.arange(40), seed=1).flatten(), factors)


def test_clients_angles_and_factors_are_uniform_and_independent() -> None:
    client = torch.arange(1000)
    turned = (angles(shifted(Group("a", 1.0, rotation=(0, 80), shift_per="client"), client, MARKER)) / 80).numpy()
    bright = shifted(Group("a", 1.0, brightness=(0, 1), shift_per="client"), client).flatten().numpy()
    even = (np.arange(1000) + 0.5) / 1000
    for drawn, error in ((turned, 0.01), (bright, 0)):
        # Kolmogorov and Smirnov's distance of 1,000 uniform draws is above 0.06 in one of 600 cases.
        assert np.abs(np.sort(drawn) - even).max() < 0.06 + error
    assert abs(np.corrcoef(turned, bright)[0, 1]) < 0.1  # three standard deviations


def test_images_of_nobody_have_a_shift_of_their_own_in_every_group() -> None:
    per_client = shifted(Group("a", 1.0, brightness=(0.2, 0.9), shift_per="client"), None)
    assert torch.equal(per_client, shifted(Group("a", 1.0, brightness=(0.2, 0.9)), None))
    assert len(per_client.unique()) == 40


def test_groups_of_one_data_set_have_separate_shifts() -> None:
    groups = [Group("own", 0.5, brightness=(0, 1)), Group("shared", 0.5, brightness=(0, 1), shift_per="client")]
    group, client = torch.arange(40) % 2, torch.arange(40) // 4
    x = shift_inputs(copies(WHITE, 40), torch.arange(40), groups, group, Stream(0), client).flatten()
    assert torch.equal(x[group == 0], shifted(groups[0], client).flatten()[group == 0])
    assert torch.equal(x[group == 1], shifted(groups[1], client).flatten()[group == 1])
    assert len(x[group == 1].unique()) == 10


BAD = {
    "three angles": ({"rotation": (0.0, 10.0, 20.0)}, r"'rotation' must be two numbers, \[low, high\]"),
    "factors": ({"brightness": (1.2, 0.9)}, r"'brightness' must be \[low, high\] with low <= high \(got \[1\.2"),
    "negative factor": ({"brightness": (-0.5, 0.9)}, r"'brightness' must be at least 0"),
    "a shift of nothing": ({"shift_per": "client"}, "'shift_per' ="),
    "a shift of something else": (
        {"rotation": (0.0, 20.0), "shift_per": "round"},
        r"'shift_per' must be .*image.*client.* \(got 'round'",
    ),
    "negative labels": ({"label_shift": -1}, r"'label_shift' must be at least 0 \(got -1"),
}


@pytest.mark.parametrize("name", list(BAD))
def test_settings_of_a_group_that_are_refused(name: str) -> None:
    given, sentence = BAD[name]
    with pytest.raises(InputError, match=sentence):
        Group(**({"name": "few", "share": 0.5} | given))


def test_a_range_may_be_a_point_and_angles_negative() -> None:
    assert Group("a", 1.0, rotation=(-20, -20), brightness=(0, 0)).rotation == (-20, -20)


CLASSES = 5
PLAIN = (Group("few", 0.25), Group("many", 0.75))


def images(count: int = 240) -> ImageDataset:
    """Images whose pixels all are their label, 0 to 4."""
    labels = torch.arange(count) % CLASSES
    pixels = labels.to(torch.uint8)[:, None, None, None].expand(-1, 1, 2, 2)
    return ImageDataset("labelled", pixels, 1, labels, count, CLASSES)


def federation_of(groups: tuple[Group, ...], **more: object) -> Federation:
    plan = Partition(8, 15, holdout_examples=3, shadow_examples=24, test_examples=30, **more)
    nothing = torch.zeros(8, dtype=torch.float64)
    return partition_dataset(images(), plan, groups, Preferences(nothing + 0.6, nothing), Stream(0))


def parts(federation: Federation) -> dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Inputs, labels and groups of each part."""
    found = {name: (each.x, each.y, each.group) for name, each in
             (("test", federation.test), ("shadow", federation.shadow))}  # fmt: skip
    for name, shards in (("clients", federation.clients), ("holdout", federation.holdout)):
        rows = shards.indices
        found[name] = (shards.x[rows], shards.y[rows], federation.group[shards.owners()])
    return found


@pytest.mark.parametrize("more", [{}, {"dirichlet_alpha": 0.3}, {"reuse_images": True}], ids=str)
def test_every_part_of_the_group_has_the_same_images_under_shifted_labels(more) -> None:
    plain, shifted = (parts(federation_of(groups, **more)) for groups in
                      (PLAIN, (PLAIN[0], replace(PLAIN[1], label_shift=3))))  # fmt: skip
    for name, (x, y, group) in shifted.items():
        before = plain[name]
        assert torch.equal(x, before[0]), name
        assert torch.equal(group, before[2]), name
        assert torch.equal(y, torch.where(group == 1, (before[1] + 3) % CLASSES, before[1])), name
        # Counts are kept, class by class.
        many = group == 1
        assert torch.equal(y[many].bincount(minlength=CLASSES), before[1][many].bincount(minlength=CLASSES).roll(3))


def test_a_shift_by_nothing_is_no_shift_bit_for_bit() -> None:
    plain, same = parts(federation_of(PLAIN)), parts(federation_of(tuple(replace(g, label_shift=0) for g in PLAIN)))
    for name, tensors in plain.items():
        assert all(torch.equal(*pair) for pair in zip(tensors, same[name], strict=True)), name


def test_texts_may_have_their_labels_shifted() -> None:
    labels = torch.arange(60) % 2
    texts = TextDataset("words", torch.ones(60, 3).long(), 4, labels, 60, 2)
    group, nothing = Group("all", 1.0, label_shift=1), torch.zeros(4, dtype=torch.float64)
    plan, preferences = Partition(4, 10, test_examples=10), Preferences(nothing + 0.6, nothing)
    found, plain = (partition_dataset(texts, plan, (each,), preferences, Stream(0)) for each in
                    (group, Group("all", 1.0)))  # fmt: skip
    assert torch.equal(found.clients.y, 1 - plain.clients.y)


def test_a_shift_by_more_than_there_are_classes_is_refused() -> None:
    with pytest.raises(InputError, match="'label_shift'"):
        federation_of((PLAIN[0], replace(PLAIN[1], label_shift=5)))


def test_label_shift_of_a_configuration(toy_config) -> None:
    changes = ({}, {"data__groups__minority__label_shift": 0}, {"data__groups__minority__label_shift": 4})
    plain, same, moved = (toy_config(**more) for more in changes)
    assert "label_shift" not in plain.table()["data"]["groups"]["minority"]
    assert moved.table()["data"]["groups"]["minority"]["label_shift"] == 4
    labels = [build(config)[1].federation.test.y for config in (plain, same, moved)]
    group = build(plain)[1].federation.test.group
    assert torch.equal(labels[0], labels[1])
    assert torch.equal(labels[2], torch.where(group == 0, (labels[0] + 4) % 10, labels[0]))
