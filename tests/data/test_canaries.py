"""Canaries: wrong labels always, half of them trained on, by the client's id and not its position, and nothing else."""

from dataclasses import replace

import pytest
import torch

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation, MislabelledCanaries
from shoal.data.content import fingerprint
from shoal.data.shards import Shards
from shoal.property import PropertySchedule


@pytest.fixture(scope="module")
def many():
    """Four classes; 30 clients of 40 numbered examples, whose only input is their number."""
    x = torch.arange(1200.0)[:, None]
    clients = [(x[40 * i : 40 * i + 40], torch.arange(40) % 4) for i in range(30)]
    return Federation.from_tensors(clients, test=(x[:4], torch.arange(4)))


def trained_labels(federation, position):
    """The labels on which a client trains, by the numbers of its examples."""
    own = federation.clients.indices_of(position)
    return dict(
        zip(federation.clients.x[own].flatten().int().tolist(), federation.clients.y[own].tolist(), strict=True)
    )


def test_without_canaries_the_federation_is_the_same(build):
    federation = build()
    same, canaries = MislabelledCanaries(per_client=0, clients=3).insert(federation, Stream(0))
    assert same is federation
    assert len(canaries) == 0
    assert canaries.x.shape[1:] == federation.clients.x.shape[1:]


def test_inputs_are_not_changed_and_nothing_but_the_canaries_differs(many):
    before = fingerprint(many)
    planted, canaries = MislabelledCanaries(per_client=6, clients=10).insert(many, Stream(5))
    assert fingerprint(many) == before
    assert len(canaries) == 60
    assert len(canaries.client.unique()) == 10
    canary = {int(x): i for i, x in enumerate(canaries.x.flatten())}
    assert len(canary) == 60
    for position in range(30):
        labels, old = trained_labels(planted, position), trained_labels(many, position)
        for number, label in old.items():
            if number not in canary:
                assert labels[number] == label
                continue
            i = canary[number]
            assert canaries.client[i] == position == number // 40
            assert canaries.record[i] == number % 40
            assert canaries.true_label[i] == label != canaries.y[i]
            # Trained on with the wrong label, or not at all.
            assert labels.get(number) == (canaries.y[i] if canaries.member[i] else None)
        assert set(labels) <= set(old)
    assert planted.clients.x is many.clients.x
    assert fingerprint(replace(planted, clients=many.clients)) == before


def test_labels_are_wrong_and_uniform_and_half_are_in(many):
    _, canaries = MislabelledCanaries(per_client=39).insert(many, Stream(1))
    count = len(canaries)
    assert count == 30 * 39
    offset = (canaries.y - canaries.true_label) % 4
    counts = offset.bincount(minlength=4)
    assert counts[0] == 0
    # Five standard deviations of binomial counts.
    assert (counts[1:] - count / 3).abs().max() < 5 * (count * 2 / 9) ** 0.5
    assert abs(int(canaries.member.sum()) - count / 2) < 5 * (count / 4) ** 0.5
    # The coin knows nothing of the label.
    of_first = canaries.member[offset == 1].double().mean()
    assert abs(of_first - 0.5) < 5 * (0.25 / int(counts[1])) ** 0.5


def test_a_clients_canaries_depend_on_its_id_and_not_on_its_position(many):
    order = torch.randperm(30, generator=Stream(9).generator())
    settings = MislabelledCanaries(per_client=5, clients=12)
    planted, canaries = settings.insert(many, Stream(2))
    permuted, moved = settings.insert(many.take(order), Stream(2))

    def told(found):
        columns = (found.client, found.record, found.y, found.member)
        return sorted(zip(*(each.tolist() for each in columns), strict=True))

    assert told(canaries) == told(moved)
    for position, before in enumerate(order.tolist()):
        assert trained_labels(permuted, position) == trained_labels(planted, before)
    _, others = settings.insert(many, Stream(3))
    assert told(others) != told(canaries)


def test_a_record_has_the_same_coin_whatever_else_is_a_canary(many):
    _, few = MislabelledCanaries(per_client=5).insert(many, Stream(2))
    _, more = MislabelledCanaries(per_client=20).insert(many, Stream(2))

    def drawn(found):
        keys = zip(found.client.tolist(), found.record.tolist(), strict=True)
        return dict(zip(keys, zip(found.y.tolist(), found.member.tolist(), strict=True), strict=True))

    assert drawn(few).items() <= drawn(more).items()


def test_only_clients_with_more_examples_than_canaries_get_some(build):
    federation = build()  # of 9, 12, 7, 12, 5 and 10 examples
    planted, canaries = MislabelledCanaries(per_client=9).insert(federation, Stream(0))
    assert canaries.client.unique().tolist() == [1, 3, 5]
    out = torch.bincount(canaries.client[~canaries.member], minlength=6)
    assert torch.equal(planted.clients.sizes, federation.clients.sizes - out)
    assert (planted.clients.sizes > 0).all()


def test_what_cannot_have_canaries_is_refused_in_one_sentence(build):
    federation = build()
    with pytest.raises(InputError, match=r"least 4 of 6 clients must have more than 'per_client' = 9 examples \(got 3"):
        MislabelledCanaries(per_client=9, clients=4).insert(federation, Stream(0))
    with pytest.raises(InputError, match=r"at least 2 classes .got 1"):
        MislabelledCanaries(per_client=1).insert(
            replace(federation, classes=1, clients=replace(federation.clients, y=0 * federation.clients.y)), Stream(0)
        )
    shards = federation.clients
    twice = Shards.from_indices(shards.x, shards.y, torch.arange(6) % 3, torch.tensor([3, 3]))
    both = replace(federation, clients=twice, ids=torch.arange(2))
    with pytest.raises(InputError, match="got 3 shared"):
        MislabelledCanaries(per_client=1).insert(both, Stream(0))
    nothing = torch.zeros(len(shards.y), dtype=torch.bool)
    schedule = PropertySchedule(nothing, torch.zeros(40, dtype=torch.bool), 0, 1, 5)
    with pytest.raises(InputError, match="property attack"):
        MislabelledCanaries(per_client=1).insert(replace(federation, schedule=schedule), Stream(0))
