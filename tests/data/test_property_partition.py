"""Who gets what where a property is dealt out, and when the victim trains on it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import (
    ImageDataset,
    Partition,
    PropertyPartition,
    TextDataset,
    draw_preferences,
    draw_property_partition,
    partition_by_property,
)
from shoal.data.property_partition import ATTACKER, VICTIM

STREAM = Stream(7, ("data",))


def pictures(count=1_200, classes=3, share=0.25):
    draw = np.random.default_rng(0)
    labels = torch.from_numpy(draw.integers(0, classes, count))
    holds = torch.from_numpy(draw.random(count) < share)
    pixels = torch.arange(count).reshape(count, 1, 1, 1).expand(count, 1, 2, 2)
    return ImageDataset("made", (pixels % 256).to(torch.uint8), 255, labels, count, classes, holds)


def plan(clients=6, examples=150, alpha=0.5, **changes):
    split = Partition(
        clients, examples, shadow_examples=20, test_examples=200, holdout_examples=3, dirichlet_alpha=alpha
    )
    return PropertyPartition(split, **{"least": 10, **changes})


def federation(given, made):
    return partition_by_property(given, made, draw_preferences(made.split.clients, (0.5, 0.8), 0.0, STREAM), STREAM)


def test_every_example_goes_to_one_place_and_the_property_to_two_clients():
    given = pictures()
    dealt = draw_property_partition(given, plan(), STREAM)
    everything = torch.cat([*dealt.clients, dealt.holdout, dealt.shadow, dealt.test])
    assert len(everything.unique()) == len(everything)
    assert sum(len(rows) for rows in dealt.clients) == 6 * 150
    with_property = [int(given.holds[rows].sum()) for rows in dealt.clients]
    assert with_property[2:] == [0, 0, 0, 0]
    assert abs(with_property[ATTACKER] - with_property[VICTIM]) <= 1
    assert len(dealt.test) == 200
    assert 0 < given.holds[dealt.test].sum() < 200


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_the_attacker_gets_its_share_of_the_property(share):
    given = pictures()
    dealt = draw_property_partition(given, plan(attacker_share=share), STREAM)
    mine, theirs = (int(given.holds[dealt.clients[who]].sum()) for who in (ATTACKER, VICTIM))
    assert mine == round(share * (mine + theirs))


def test_skew_leaves_each_client_a_batch_and_no_skew_leaves_equal_parts():
    given = pictures()
    skewed, even = (draw_property_partition(given, plan(alpha=alpha), STREAM).clients for alpha in (0.2, None))

    def others(rows):
        return given.labels[rows[~given.holds[rows]]]

    shares = torch.stack([torch.bincount(others(rows), minlength=3) / len(others(rows)) for rows in skewed])
    assert min(len(others(rows)) for rows in skewed) >= 10
    assert shares.max() > 0.75, "a small alpha gives clients of nearly one class"
    sizes = [len(others(rows)) for rows in even]
    assert max(sizes) - min(sizes) <= 1


def test_a_seed_deals_as_before_and_another_otherwise():
    first, again, other = (
        draw_property_partition(pictures(), plan(), stream) for stream in (STREAM, STREAM, Stream(8, ("data",)))
    )
    assert all(torch.equal(a, b) for a, b in zip(first.clients, again.clients, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.clients, other.clients, strict=True))


def test_the_federation_holds_what_was_dealt():
    given = pictures()
    made = federation(given, plan())
    dealt = draw_property_partition(given, plan(), STREAM)
    rows = torch.cat(dealt.clients)
    assert torch.equal(made.clients.y, given.labels[rows])
    assert torch.equal((made.clients.x[:, 0, 0, 0] * 255).round().long(), rows % 256)
    assert torch.equal(made.property_schedule.holds, given.holds[rows])
    assert torch.equal(made.property_schedule.test_holds, given.holds[dealt.test])


def test_texts_are_dealt_as_they_are():
    given = pictures()
    words = torch.randint(1, 50, (1_200, 8))
    texts = TextDataset("made", words, 50, given.labels, 1_200, 3, given.holds)
    made = federation(texts, plan())
    assert made.clients.x.dtype == torch.int64
    assert torch.equal(made.clients.x, words[torch.cat(draw_property_partition(texts, plan(), STREAM).clients)])


def test_the_victim_takes_turns_and_nobody_else_does():
    made = federation(pictures(), plan(every=4))
    holds, schedule = made.property_schedule.holds, made.property_schedule
    for number in range(1, 9):
        turn = made.clients_in_round(number)
        for client in range(len(made)):
            if client == VICTIM:
                assert bool((holds[turn.owned(client)] == (number % 4 == 0)).all())
                assert len(turn.owned(client)) == int((holds[made.clients.owned(client)] == (number % 4 == 0)).sum())
            else:
                assert torch.equal(turn.owned(client), made.clients.owned(client))
        assert schedule.present(number) == (number % 4 == 0)


def test_turns_follow_the_victim_into_another_order():
    made = federation(pictures(), plan(every=2))
    order = torch.tensor([4, 1, 5, 0, 3, 2])
    permuted = made.permuted(order).clients_in_round(2)
    for place, client in enumerate(order.tolist()):
        assert torch.equal(permuted.owned(place), made.clients_in_round(2).owned(client))


@pytest.mark.parametrize(
    ("given", "made", "sentence"),
    [
        (replace(pictures(), holds=None), plan, "needs a task with a property"),
        (replace(pictures(), holds=torch.zeros(1_200, dtype=torch.bool)), plan, "held by none of the 1,200 examples"),
        (replace(pictures(), holds=torch.ones(1_200, dtype=torch.bool)), plan, "AUC is undefined"),
        (pictures(), lambda: plan(clients=2), "'data.clients' must be at least 3; got 2"),
        (pictures(), lambda: plan(examples=400), r"asks for 2,638 examples .* but made has 1,200"),
        (pictures(), lambda: plan(least=150), "the attacker gets 11[0-9] training examples with the property"),
        (pictures(), lambda: plan(attacker_share=0.97), "the victim gets 7 training examples"),
        (
            pictures(),
            lambda: plan(12, 60, 0.01, least=30),
            "'data.dirichlet_alpha' = 0.01 leaves a client with fewer than 30",
        ),
        (
            pictures(share=0.9),
            lambda: plan(alpha=None, least=20),
            r"there are \d\d training examples without the property, fewer than a batch of 20 for each of 6 clients",
        ),
        (pictures(), lambda: plan(attacker_share=1.0), "'property_attack.attacker_share' must be above 0 and below 1"),
        (pictures(), lambda: plan(every=1), "'property_attack.every' must be at least 2; got 1"),
    ],
)
def test_what_cannot_be_dealt_is_one_sentence(given, made, sentence):
    with pytest.raises(InputError, match=sentence) as error:
        draw_property_partition(given, made(), STREAM)
    assert "\n" not in str(error.value)
