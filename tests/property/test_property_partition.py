"""Partitions by property, and the rounds in which the victim trains on it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import ImageDataset, Partition, TextDataset, draw_preferences
from shoal.property.property_federation import (
    ATTACKER,
    VICTIM,
    PropertyPartition,
    draw_property_partition,
    partition_by_property,
)

STREAM = Stream(7, ("data",))


def images(count=1_200, classes=3, share=0.25):
    rng = np.random.default_rng(0)
    labels = torch.from_numpy(rng.integers(0, classes, count))
    has_property = torch.from_numpy(rng.random(count) < share)
    pixels = torch.arange(count).reshape(count, 1, 1, 1).expand(count, 1, 2, 2)
    return ImageDataset("made", (pixels % 256).to(torch.uint8), 255, labels, count, classes, has_property)


def settings(clients=6, examples=150, alpha=0.5, **changes):
    partition = Partition(
        clients, examples, shadow_examples=20, test_examples=200, holdout_examples=3, dirichlet_alpha=alpha
    )
    return PropertyPartition(partition, **{"min_examples": 10, **changes})


def federation_of(dataset, settings):
    preferences = draw_preferences(settings.partition.clients, (0.5, 0.8), 0.0, STREAM)
    return partition_by_property(dataset, settings, preferences, STREAM)


def test_every_example_goes_to_one_part_and_the_property_to_two_clients():
    dataset = images()
    partition = draw_property_partition(dataset, settings(), STREAM)
    everything = torch.cat([partition.clients.indices, partition.holdout.indices, partition.shadow, partition.test])
    assert len(everything.unique()) == len(everything)
    assert len(partition.clients.indices) == 6 * 150
    with_property = [int(dataset.has_property[indices].sum()) for indices in partition.clients.by_client()]
    assert with_property[2:] == [0, 0, 0, 0]
    assert abs(with_property[ATTACKER] - with_property[VICTIM]) <= 1
    assert len(partition.test) == 200
    assert 0 < dataset.has_property[partition.test].sum() < 200


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_the_attacker_gets_its_share_of_the_property(share):
    dataset = images()
    partition = draw_property_partition(dataset, settings(attacker_share=share), STREAM)
    by_client = partition.clients.by_client()
    attacker, victim = (int(dataset.has_property[by_client[client]].sum()) for client in (ATTACKER, VICTIM))
    assert attacker == round(share * (attacker + victim))


def test_skew_leaves_each_client_a_batch_and_no_skew_leaves_equal_parts():
    dataset = images()
    drawn = [draw_property_partition(dataset, settings(alpha=alpha), STREAM) for alpha in (0.2, None)]
    skewed, even = (partition.clients.by_client() for partition in drawn)

    def without_property(indices):
        return dataset.labels[indices[~dataset.has_property[indices]]]

    shares = torch.stack(
        [torch.bincount(without_property(indices), minlength=3) / len(without_property(indices)) for indices in skewed]
    )
    assert min(len(without_property(indices)) for indices in skewed) >= 10
    assert shares.max() > 0.75, "a small alpha gives clients of nearly one class"
    sizes = [len(without_property(indices)) for indices in even]
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("seed", range(4))
def test_a_natural_victims_labels_are_those_of_all_and_the_others_are_skewed(seed):
    """In rounds with the property and in the others, so that an attack on its labels finds nothing."""
    dataset = images(count=6_000)
    common = torch.bincount(dataset.labels).double() / 6_000

    def distance(victim_labels, client):
        asked = settings(examples=700, alpha=0.3, victim_labels=victim_labels)
        indices = draw_property_partition(dataset, asked, Stream(seed)).clients.by_client()[client]
        labels = dataset.labels[indices[~dataset.has_property[indices]]]
        return float((torch.bincount(labels, minlength=3).double() / len(labels) - common).abs().max())

    assert distance("natural", VICTIM) < 0.08
    assert max(distance("natural", client) for client in range(6) if client != VICTIM) > 0.2
    assert sum(distance("skewed", client) for client in range(6)) / 6 > 0.15


def test_a_natural_victim_has_as_many_examples_of_each_kind():
    dataset = images()
    clients = draw_property_partition(dataset, settings(), STREAM).clients
    indices = clients.by_client()[VICTIM]
    assert 2 * int(dataset.has_property[indices].sum()) == len(indices)
    everything = clients.indices
    assert len(everything.unique()) == 6 * 150


def test_a_seed_gives_the_same_partition_and_another_seed_another():
    first, again, other = (
        draw_property_partition(images(), settings(), stream) for stream in (STREAM, STREAM, Stream(8, ("data",)))
    )
    assert all(torch.equal(a, b) for a, b in zip(first.clients, again.clients, strict=True))
    assert not torch.equal(first.clients.indices, other.clients.indices)


def test_the_federation_has_the_examples_that_were_drawn():
    dataset = images()
    federation = federation_of(dataset, settings())
    partition = draw_property_partition(dataset, settings(), STREAM)
    indices = partition.clients.indices
    assert torch.equal(federation.clients.y, dataset.labels[indices])
    assert torch.equal((federation.clients.x[:, 0, 0, 0] * 255).round().long(), indices % 256)
    assert torch.equal(federation.schedule.has_property, dataset.has_property[indices])
    assert torch.equal(federation.schedule.test_has_property, dataset.has_property[partition.test])


def test_texts_are_partitioned_unchanged():
    dataset = images()
    words = torch.randint(1, 50, (1_200, 8))
    texts = TextDataset("made", words, 50, dataset.labels, 1_200, 3, dataset.has_property)
    federation = federation_of(texts, settings())
    assert federation.clients.x.dtype == torch.int64
    assert torch.equal(federation.clients.x, words[draw_property_partition(texts, settings(), STREAM).clients.indices])


def test_only_the_victim_alternates_between_its_examples():
    federation = federation_of(images(), settings(period=4))
    has_property, schedule = federation.schedule.has_property, federation.schedule
    for number in range(1, 9):
        shards = federation.clients_in_round(number)
        for client in range(len(federation)):
            if client == VICTIM:
                expected = federation.clients.indices_of(client)
                assert torch.equal(shards.indices_of(client), expected[has_property[expected] == (number % 4 == 0)])
            else:
                assert torch.equal(shards.indices_of(client), federation.clients.indices_of(client))
        assert schedule.present(number) == (number % 4 == 0)


def test_the_schedule_follows_the_victim_into_another_order():
    federation = federation_of(images(), settings(period=2))
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    permuted = federation.take(order).clients_in_round(2)
    for place, client in enumerate(order.tolist()):
        assert torch.equal(permuted.indices_of(place), federation.clients_in_round(2).indices_of(client))


@pytest.mark.parametrize(
    ("dataset", "make_settings", "sentence"),
    [
        (replace(images(), has_property=None), settings, "'task' of made must name a property for a property attack"),
        (
            replace(images(), has_property=torch.zeros(1_200, dtype=torch.bool)),
            settings,
            "got 0 of 1,200",
        ),
        (replace(images(), has_property=torch.ones(1_200, dtype=torch.bool)), settings, "got 1,200 of 1,200"),
        (images(), lambda: settings(clients=2), "'clients'.*got 2"),
        (images(), lambda: settings(examples=400), r"2,638 images .* \(got 1,200\)"),
        (images(), lambda: settings(min_examples=150), "the attacker .*got 11[0-9]"),
        (images(), lambda: settings(attacker_share=0.97), "the victim .*got 7"),
        (
            images(),
            lambda: settings(12, 60, 0.01, min_examples=30),
            "'dirichlet_alpha'.*30.*got 0.01",
        ),
        (
            images(share=0.9),
            lambda: settings(alpha=None, min_examples=20),
            r"6 clients .*120 .*got \d\d",
        ),
        (images(), lambda: settings(attacker_share=1.0), r"'attacker_share' must be below 1.* \(got 1.0"),
        (images(), lambda: settings(period=1), r"'period' must be at least 2 \(got 1"),
    ],
)
def test_wrong_property_partitions_are_one_sentence(dataset, make_settings, sentence):
    with pytest.raises(InputError, match=sentence) as error:
        draw_property_partition(dataset, make_settings(), STREAM)
    assert "\n" not in str(error.value)


def test_by_default_clients_are_all_alike_and_the_stream_is_that_of_a_run_with_seed_0():
    default = partition_by_property(images(), settings())
    same = partition_by_property(images(), settings(), default.preferences, Stream(0, ("data",)))
    assert torch.equal(default.clients.x, same.clients.x)
    assert default.preferences.threshold.tolist() == [0.65] * 6
    assert default.preferences.beta.tolist() == [0.5] * 6
