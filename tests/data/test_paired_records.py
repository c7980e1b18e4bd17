"""Pairs of a training and a test example: matched, each used once, and exchanged without changing anything else."""

import pytest
import torch

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Examples, Federation, Group, ImageDataset, Partition, Preferences, partition_dataset
from shoal.data.swap_pairs import pair_records


@pytest.fixture
def federation() -> Federation:
    """Two groups, three labels; group "b" has fewer test examples of each label than training examples."""
    generator = torch.Generator().manual_seed(0)

    def examples(count):
        return torch.rand(count, 1, 6, 6, generator=generator), torch.randint(0, 3, (count,), generator=generator)

    x, y = examples(60)
    return Federation.from_tensors(
        [examples(12) for _ in range(4)], test=Examples(x, y, ["a"] * 50 + ["b"] * 10), groups=["a", "b", "a", "b"]
    )


def test_pairs_have_one_group_and_label_and_no_example_twice(federation):
    records = pair_records(federation, Stream(0))
    pairs = len(records)
    assert torch.equal(records.labels[:pairs], records.labels[pairs:])
    owner_group = federation.group[records.client[:pairs]]
    assert torch.equal(owner_group, federation.test.group[records.test])
    assert len(records.entry.unique()) == len(records.test.unique()) == pairs
    # As many as can be: the smaller of the two numbers, for each group and label.
    group, label = federation.group[federation.clients.owners()], federation.clients.y[federation.clients.indices]
    expected = sum(
        min(
            int(((group == g) & (label == c)).sum()),
            int(((federation.test.group == g) & (federation.test.y == c)).sum()),
        )
        for g in range(2)
        for c in range(3)
    )
    assert pairs == expected < len(federation.clients.indices)


def test_swapping_moves_the_chosen_examples_alone(federation):
    records = pair_records(federation, Stream(0))
    exchange = torch.arange(len(records)) % 3 == 0
    before, after = federation.clients, records.swap_records(exchange).clients
    assert torch.equal(before.sizes, after.sizes)
    assert torch.equal(before.y[before.indices], after.y[after.indices]), "labels stay, one by one"
    moved = torch.ones(len(before.indices), dtype=torch.bool)
    moved[records.entry[~exchange]] = False
    untouched = torch.ones(len(before.indices), dtype=torch.bool)
    untouched[records.entry[exchange]] = False
    assert torch.equal(before.x[before.indices[untouched]], after.x[after.indices[untouched]])
    test = federation.test.x[records.test[exchange]]
    assert torch.equal(after.x[after.indices[records.entry[exchange]]], test)
    assert torch.equal(records.federation.clients.x[records.rows[len(records) :]], federation.test.x[records.test])


def test_swapping_no_pair_or_all_pairs_gives_the_two_halves(federation):
    records = pair_records(federation, Stream(0))
    none = records.swap_records(torch.zeros(len(records), dtype=torch.bool)).clients
    assert torch.equal(none.x[none.indices], federation.clients.x[federation.clients.indices])
    every = records.swap_records(torch.ones(len(records), dtype=torch.bool)).clients
    assert torch.equal(every.indices[records.entry], records.rows[len(records) :])


def test_pairs_are_drawn_by_the_stream_alone(federation):
    first, again, other = (pair_records(federation, Stream(seed)) for seed in (0, 0, 1))
    assert torch.equal(first.test, again.test)
    assert not torch.equal(first.test, other.test)


def test_without_any_test_example_like_a_training_example_there_is_no_pair():
    x = torch.rand(4, 3)
    federation = Federation.from_tensors([(x, [0, 0, 0, 0])], test=(x, [1, 1, 1, 1]), classes=2)
    with pytest.raises(InputError, match="training example"):
        pair_records(federation, Stream(0))


def test_clients_with_an_angle_of_their_own_are_paired_by_group_and_label_too():
    """The test images keep their angles on their way into a client, and the client's others keep its own."""
    groups = [
        Group(name, 0.5, brightness=(low, low + 0.4), shift_per="client") for name, low in (("a", 0.1), ("b", 0.5))
    ]
    images = ImageDataset("white", torch.full((90, 1, 1, 1), 255, dtype=torch.uint8), 255, torch.arange(90) % 3, 90, 3)
    nothing = torch.zeros(4, dtype=torch.float64)
    plan = Partition(4, 12, test_examples=40)
    federation = partition_dataset(images, plan, groups, Preferences(nothing + 0.6, nothing), Stream(0))
    records = pair_records(federation, Stream(0))
    pairs = len(records)
    assert pairs >= 30
    assert torch.equal(records.labels[:pairs], records.labels[pairs:])
    after = records.swap_records(torch.arange(pairs) % 2 == 0).clients
    exchanged = torch.zeros(48, dtype=torch.bool)
    exchanged[records.entry[::2]] = True
    for i in range(4):
        factors, moved = after.x[after.indices_of(i)].flatten(), exchanged[after.owners() == i]
        own = federation.clients.x[federation.clients.indices_of(i)].flatten()
        assert (own == own[0]).all()
        assert (factors[~moved] == own[0]).all()
        assert (factors[moved] != own[0]).all()
    assert torch.equal(after.x[after.indices[records.entry[::2]]], federation.test.x[records.test[::2]])
