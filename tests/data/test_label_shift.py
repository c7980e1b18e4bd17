"""Groups whose labels are shifted: the same examples under other labels, in every part of the federation."""

from dataclasses import replace

import pytest
import torch

from shoal.config.build import build
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation, Group, ImageDataset, Partition, Preferences, TextDataset, partition_dataset

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
    with pytest.raises(
        InputError, match=r"'label_shift' of group 'many' must be below the 5 classes of labelled; got 5"
    ):
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
