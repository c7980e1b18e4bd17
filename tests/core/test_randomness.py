"""The laws of named streams."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from shoal.core.randomness import Stream, seed_libraries

SIZES = torch.tensor([5, 1, 12, 0, 7, 12])
IDS = torch.tensor([4, 0, 11, 3, 100, 7])
BATCHES = Stream(2)("batches")


def orders(ids: Tensor = IDS, sizes: Tensor = SIZES, count: int = 3, stream: Stream = BATCHES) -> Tensor:
    return stream.permutations(ids, sizes, count)


def test_a_place_is_its_path_however_it_is_reached() -> None:
    assert Stream(1)("a", 2)("b") == Stream(1)("a")(2, "b") == Stream(1, ("a", 2, "b"))


def test_a_draw_does_not_depend_on_what_was_drawn_before() -> None:
    first, second = Stream(1)("first"), Stream(1)("second")
    fresh = torch.rand(5, generator=Stream(1)("second").generator())
    torch.rand(1000, generator=first.generator())
    second.numpy().random(10)
    torch.rand(3, generator=second.generator())
    assert torch.equal(torch.rand(5, generator=second.generator()), fresh)
    assert (Stream(1)("x").numpy().random(4) == Stream(1)("x").numpy().random(4)).all()


def test_every_other_seed_or_path_is_another_place() -> None:
    streams = [
        Stream(0),
        Stream(1),
        Stream(0)(1),
        Stream(0)("1"),
        Stream(0)("a", "b"),
        Stream(0)("b", "a"),
        Stream(0)("ab"),
        Stream(0)("a"),
        Stream(0)("a", 1, 2),
        Stream(0)("a", 12),
        Stream(0)("a', 'b"),
        Stream(1)("a"),
    ]
    draws = [tuple(torch.rand(2, generator=stream.generator()).tolist()) for stream in streams]
    assert len({stream.key() for stream in streams}) == len(set(draws)) == len(streams)


def test_keys_fit_torch_and_numpy() -> None:
    keys = [Stream(0)(i).key() for i in range(200)]
    assert all(0 <= key < 2**63 for key in keys)
    assert any(key >= 2**62 for key in keys)


def test_streams_whose_keys_agree_in_32_bits_draw_different_numbers() -> None:
    """PyTorch's `manual_seed` keeps 32 bits of a seed, so that these would have been one stream."""
    streams = {}
    alike = []
    for i in range(90_000):
        stream = Stream(0)("client", i)
        other = streams.setdefault(stream.key() % 2**32, stream)
        if other is not stream:
            alike.append((stream, other))
    assert alike
    for stream, other in alike:
        assert torch.equal(*(torch.rand(2, generator=torch.Generator().manual_seed(s.key())) for s in (stream, other)))
        assert not torch.equal(*(torch.rand(2, generator=s.generator()) for s in (stream, other)))
    drawn = {tuple(torch.randint(2**62, (2,), generator=Stream(0)(i).generator()).tolist()) for i in range(20_000)}
    assert len(drawn) == 20_000


def test_a_generator_is_a_mersenne_twister_at_its_start() -> None:
    """The layout of PyTorch's state, which it does not document: NumPy's twister of the same words draws the same."""
    stream = Stream(3)("layout")
    words = np.random.Philox(key=int.from_bytes(stream._digest(16), "little")).random_raw(312).view(np.uint32)
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    expected = [value % 2**24 * 2.0**-24 for value in twister.random_raw(40)]
    assert torch.rand(40, generator=stream.generator()).tolist() == expected
    normal = torch.randn(20_000, generator=stream.generator())
    assert abs(float(normal.mean())) < 0.03
    assert abs(float(normal.std()) - 1) < 0.03


def test_permutations_are_permutations_with_padding_behind() -> None:
    permutations = orders(count=4)
    assert permutations.shape == (6, 4, 12)
    assert permutations.dtype == torch.int64
    for i, size in enumerate(SIZES.tolist()):
        for row in permutations[i].tolist():
            assert sorted(row[:size]) == list(range(size))
            assert row[size:] == list(range(size, 12))


def test_passes_and_owners_differ() -> None:
    permutations = orders(torch.arange(3), torch.full((3,), 30), 3)
    rows = {tuple(row.tolist()) for owner in permutations for row in owner}
    assert len(rows) == 9


def test_an_owner_s_orders_do_not_depend_on_the_others_or_their_order() -> None:
    everyone = orders()
    turned = torch.tensor([5, 2, 0, 3, 1, 4])
    assert torch.equal(orders(IDS[turned], SIZES[turned]), everyone[turned])
    for i, size in enumerate(SIZES.tolist()):
        alone = orders(IDS[i : i + 1], SIZES[i : i + 1])
        assert torch.equal(alone[0], everyone[i, :, :size])
    among_larger = orders(torch.cat([IDS, torch.tensor([55])]), torch.cat([SIZES, torch.tensor([40])]))
    for i, size in enumerate(SIZES.tolist()):
        assert torch.equal(among_larger[i, :, :size], everyone[i, :, :size])


def test_an_owner_s_orders_depend_on_its_id_and_the_stream() -> None:
    assert not torch.equal(orders(IDS + 1), orders())
    assert not torch.equal(orders(stream=Stream(3)("batches")), orders())
    assert not torch.equal(orders(stream=Stream(2)("other")), orders())


def test_the_first_passes_are_those_of_a_shorter_draw() -> None:
    for count in (1, 2):
        assert torch.equal(orders(count=3)[:, :count], orders(count=count))


def test_no_owners_and_no_passes_are_no_orders() -> None:
    nobody = torch.zeros(0, dtype=torch.int64)
    assert orders(nobody, nobody).shape == (0, 3, 0)
    assert orders(count=0).shape == (6, 0, 12)


def test_orders_do_not_change_what_they_are_given() -> None:
    ids, sizes = IDS.clone(), SIZES.clone()
    orders(ids, sizes)
    assert torch.equal(ids, IDS)
    assert torch.equal(sizes, SIZES)


@pytest.mark.parametrize("position", [0, 3, 9])
def test_every_element_comes_at_every_place_equally_often(position: int) -> None:
    """Chi-square over 4,000 owners and 2 passes; at a fixed seed the outcome is fixed."""
    permutations = orders(torch.arange(4000), torch.full((4000,), 10), 2)
    counts = torch.bincount(permutations[:, :, position].flatten(), minlength=10)
    assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_passes_of_one_owner_are_independent() -> None:
    """The pairs (first of pass 1, first of pass 2) are uniform over the 25 pairs."""
    permutations = orders(torch.arange(5000), torch.full((5000,), 5), 2)[:, :, 0]
    counts = torch.bincount(5 * permutations[:, 0] + permutations[:, 1], minlength=25)
    assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_all_orders_of_three_are_equally_likely() -> None:
    permutations = orders(torch.arange(6000), torch.full((6000,), 3), 1)[:, 0]
    counts = torch.unique(permutations, dim=0, return_counts=True)[1]
    assert len(counts) == 6
    assert stats.chisquare(counts.numpy()).pvalue > 0.001


def test_seeded_lends_the_global_generator_and_restores_it() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        expected = torch.rand(3)
        torch.manual_seed(5)
        with seed_libraries(Stream(0)("a")):
            inside = torch.rand(3)
        assert torch.equal(torch.rand(3), expected)
        with seed_libraries(Stream(0)("a")):
            assert torch.equal(torch.rand(3), inside)
        with seed_libraries(Stream(0)("b")):
            assert not torch.equal(torch.rand(3), inside)


def test_seeded_restores_the_global_generator_after_an_error_and_can_be_entered_again() -> None:
    before = torch.random.get_rng_state()
    with pytest.raises(RuntimeError, match="shape"), seed_libraries(Stream(0)):
        torch.rand(3).reshape(2)
    assert torch.equal(torch.random.get_rng_state(), before)
    with seed_libraries(Stream(0)):
        torch.rand(1)
    assert torch.equal(torch.random.get_rng_state(), before)
