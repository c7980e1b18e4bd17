"""Partitions: every image in one part, shifted by its group, and the same partition each time.

An image's label is its own index (as many classes as images) and its three pixels are the digits of that index in base
256, so the part that an image went to can be read off twice.
"""

import hashlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation, Group, ImageDataset, Partition, Preferences, load_dataset, partition_dataset
from shoal.data.partition import apportion
from shoal.data.shifts import skew_labels

EVERYONE = (Group("all", 1.0),)
TWO = (Group("few", 0.25), Group("many", 0.75))


def numbered(train: int, test: int) -> ImageDataset:
    """Images of 2x2 pixels in three channels that encode their own index, the training split first."""
    number = torch.arange(train + test)
    digits = torch.stack([number % 256, number // 256 % 256, number // 65536], dim=1).to(torch.uint8)
    pixels = digits[:, :, None, None].expand(-1, 3, 2, 2).contiguous()
    return ImageDataset("numbers", pixels, 255, number, train, train + test)


def numbers(x: Tensor) -> Tensor:
    """The indices that the pixels of unshifted images encode."""
    values = (255 * x).round().long()
    assert (values == values[:, :, :1, :1]).all()
    return values[:, 0, 0, 0] + 256 * values[:, 1, 0, 0] + 65536 * values[:, 2, 0, 0]


def white(count: int) -> ImageDataset:
    """White images, whose pixels are the factors of their brightness."""
    pixels = torch.full((count, 1, 2, 2), 16, dtype=torch.uint8)
    return ImageDataset("white", pixels, 16, torch.arange(count), count, count)


def partition(clients: int, examples: int, shadow: int, test: int, **more: Any) -> Partition:
    return Partition(clients, examples, shadow_examples=shadow, test_examples=test, **more)


def federation_of(
    images: ImageDataset, plan: Partition, groups: tuple[Group, ...] = EVERYONE, seed: int = 0
) -> Federation:
    nothing = torch.zeros(plan.clients, dtype=torch.float64)
    return partition_dataset(images, plan, groups, Preferences(nothing + 0.6, nothing), Stream(seed))


def indices_by_part(federation: Federation) -> dict[str, Tensor]:
    """The indices of the images in each part, read from the pixels; the labels must say the same."""
    parts = {}
    for name, shards in (("clients", federation.clients), ("holdout", federation.holdout)):
        x, y = shards.x[shards.indices], shards.y[shards.indices]
        assert torch.equal(numbers(x), y), name
        parts[name] = y
    for name, examples in (("shadow", federation.shadow), ("test", federation.test)):
        assert torch.equal(numbers(examples.x), examples.y), name
        parts[name] = examples.y
    return parts


PLANS = {
    "no official test part": (500, 0, partition(10, 20, 100, 50, holdout_examples=5)),
    "all images used": (300, 100, partition(10, 20, 100, 50, holdout_examples=5)),
    "test part larger than the test set": (300, 200, partition(10, 20, 50, 60, holdout_examples=3)),
    "test part smaller than the test set": (300, 20, partition(8, 15, 60, 70)),
    "clients take the whole training part": (500, 100, partition(10, 50, 60, 40)),
    "clients reach into the test part": (100, 300, partition(10, 20, 50, 60, holdout_examples=2)),
    "only test part": (0, 200, partition(4, 10, 50, 60)),
    "nothing for the server": (100, 20, partition(4, 10, 0, 10)),
    "dirichlet": (400, 100, partition(10, 30, 50, 60, holdout_examples=4, dirichlet_alpha=0.5)),
    "more than 65,536 images": (70_000, 10, partition(10, 20, 65_900, 100)),
}


@pytest.mark.parametrize("groups", [EVERYONE, TWO], ids=["one group", "two groups"])
@pytest.mark.parametrize("case", list(PLANS))
def test_every_image_is_in_one_part_and_its_label_goes_with_it(case: str, groups: tuple[Group, ...]) -> None:
    train, test, plan = PLANS[case]
    federation = federation_of(numbered(train, test), plan, groups)
    parts = indices_by_part(federation)
    sizes = {name: len(y) for name, y in parts.items()}
    if plan.dirichlet_alpha is not None:
        # What a client keeps out is a fraction of what it has, so integers of all sum to about as many.
        assert abs(sizes["holdout"] - plan.clients * plan.holdout_examples) <= plan.clients / 2
        sizes["clients"] += sizes["holdout"] - plan.clients * plan.holdout_examples
        sizes["holdout"] = plan.clients * plan.holdout_examples
    assert sizes == {
        "clients": plan.clients * plan.examples_per_client,
        "holdout": plan.clients * plan.holdout_examples,
        "shadow": plan.shadow_examples,
        "test": plan.test_examples,
    }
    everywhere = torch.cat(list(parts.values()))
    assert len(everywhere.unique()) == len(everywhere)
    assert everywhere.min() >= 0
    assert everywhere.max() < train + test
    official = {name: int((y >= train).sum()) for name, y in parts.items()}
    assert official["test"] == min(test, plan.test_examples)
    assert official["clients"] == max(0, plan.clients * plan.examples_per_client - train)
    if plan.dirichlet_alpha is None:
        assert federation.clients.sizes.tolist() == [plan.examples_per_client] * plan.clients
        assert federation.holdout.sizes.tolist() == [plan.holdout_examples] * plan.clients


# --- groups -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "total", "expected"),
    [
        ([0.1, 0.9], 200, [20, 180]),
        ([0.29, 0.71], 100, [29, 71]),
        ([1 / 3, 1 / 3, 1 / 3], 10, [4, 3, 3]),
        ([0.26, 0.37, 0.37], 10, [2, 4, 4]),
        ([0.02, 0.98], 10, [0, 10]),
        ([0.5, 0.5], 0, [0, 0]),
    ],
)
def test_apportion_by_largest_remainder(shares: list[float], total: int, expected: list[int]) -> None:
    assert apportion(shares, total) == expected


@pytest.mark.parametrize("total", [1, 7, 100, 999])
@pytest.mark.parametrize("groups", [2, 3, 7])
def test_apportion_gives_everything_away_within_one_of_the_exact_share(groups: int, total: int) -> None:
    shares = np.random.default_rng(groups + total).dirichlet(np.ones(groups)).tolist()
    given = apportion(shares, total)
    assert sum(given) == total
    assert all(abs(count - share * total) < 1 for count, share in zip(given, shares, strict=True))


def test_clients_and_shadow_are_mixed_by_share_and_the_test_set_evenly() -> None:
    groups = (Group("a", 0.1), Group("b", 0.25), Group("c", 0.65))
    federation = federation_of(numbered(1000, 0), partition(20, 5, 200, 90), groups)
    assert federation.groups == ("a", "b", "c")
    assert torch.bincount(federation.group).tolist() == [2, 5, 13]
    assert federation.group_fractions.tolist() == pytest.approx([0.1, 0.25, 0.65])
    assert torch.bincount(federation.shadow.group).tolist() == [20, 50, 130]
    assert torch.bincount(federation.test.group).tolist() == [30, 30, 30]


def test_a_group_s_share_of_the_shadow_set_may_be_another_than_of_the_clients() -> None:
    groups = Group("a", 0.5, shadow_share=0.0), Group("b", 0.25), Group("c", 0.25, shadow_share=0.75)
    federation = federation_of(numbered(1000, 0), partition(20, 5, 200, 90), groups)
    plain = federation_of(numbered(1000, 0), partition(20, 5, 200, 90), [replace(g, shadow_share=None) for g in groups])
    assert torch.bincount(federation.shadow.group).tolist() == [0, 50, 150]
    for name in ("clients", "test"):
        assert getattr(federation, name).x.equal(getattr(plain, name).x)
    with pytest.raises(InputError, match=r"shadow_share' must be above 0 for at least one group \(got 0 for all\)"):
        federation_of(numbered(1000, 0), partition(20, 5, 200, 90), [replace(g, shadow_share=0.0) for g in groups])


def test_every_image_is_shifted_within_the_range_of_its_group_wherever_it_is() -> None:
    groups = (Group("dark", 0.4, brightness=(0.1, 0.3)), Group("dim", 0.6, brightness=(0.5, 0.9)))
    images = white(600)
    federation = federation_of(images, partition(10, 20, 100, 100, holdout_examples=5), groups)
    of_owner = [(shards, federation.group[shards.owners()]) for shards in (federation.clients, federation.holdout)]
    placed = [(shards.x[shards.indices], group) for shards, group in of_owner]
    placed += [(federation.shadow.x, federation.shadow.group), (federation.test.x, federation.test.group)]
    for x, group in placed:
        for g, (low, high) in enumerate([(0.1, 0.3), (0.5, 0.9)]):
            factors = x[group == g][:, 0, 0, 0]
            assert low - 1e-6 <= factors.min() < low + 0.3 * (high - low)
            assert high - 0.3 * (high - low) < factors.max() <= high + 1e-6
            assert len(factors.unique()) > 0.9 * len(factors)


def noise(count: int) -> ImageDataset:
    pixels = torch.randint(0, 256, (count, 1, 8, 8), generator=Stream(1).generator(), dtype=torch.uint8)
    return ImageDataset("noise", pixels, 255, torch.arange(count), count, count)


def test_an_image_s_shift_does_not_depend_on_where_it_is() -> None:
    group = (Group("turned", 1.0, rotation=(0, 90), brightness=(0.5, 1)),)
    here = federation_of(noise(400), partition(10, 20, 40, 60), group)
    there = federation_of(noise(400), partition(5, 10, 150, 60, holdout_examples=12), group)
    by_number: list[dict[int, Tensor]] = []
    for federation in (here, there):
        parts = (federation.clients, federation.holdout, federation.shadow, federation.test)
        by_number.append({int(y): x for part in parts for x, y in zip(part.x, part.y, strict=True)})
    both = set(by_number[0]) & set(by_number[1])
    assert set(here.clients.y.tolist()) & set(there.shadow.y.tolist())
    assert len(both) > 200
    for number in both:
        torch.testing.assert_close(by_number[0][number], by_number[1][number], atol=1e-6, rtol=0)


@pytest.mark.parametrize("more", [{}, {"dirichlet_alpha": 0.5}, {"reuse_images": True}], ids=["even", "skew", "reused"])
def test_shift_per_client_is_the_same_for_training_and_hold_out_images(more: Any) -> None:
    each, shared = Group("each", 0.4, brightness=(0.1, 0.3)), Group("shared", 0.6, brightness=(0.5, 0.9))
    images = white(700)
    plan = partition(10, 20, 100, 100, holdout_examples=5, **more)
    per_image, found = (
        federation_of(images, plan, (each, replace(shared, shift_per=per))) for per in ("image", "client")
    )
    factors = []
    for i in range(10):
        own, out = (shards.x[shards.indices_of(i)][:, 0, 0, 0] for shards in (found.clients, found.holdout))
        if found.group[i] == 1:
            factors.append(own[0])
            assert (torch.cat([own, out]) == own[0]).all()
        else:
            assert len(own.unique()) > 0.8 * len(own)
    assert len(set(map(float, factors))) == 6
    assert min(factors) >= 0.5
    assert max(factors) <= 0.9
    # Who has which images, all of the other group, and what belongs to no client, is as it was, bit for bit.
    assert torch.equal(found.clients.y, per_image.clients.y)
    other = per_image.group[per_image.clients.owners()] == 0
    assert torch.equal(found.clients.x[other], per_image.clients.x[other])
    assert torch.equal(found.test.x, per_image.test.x)
    assert torch.equal(found.shadow.x, per_image.shadow.x)


def test_the_server_s_sets_do_not_change_what_clients_hold() -> None:
    group = (Group("turned", 1.0, rotation=(0, 90)),)
    plain, more = (
        federation_of(noise(300), partition(10, 10, shadow, test), group) for shadow, test in ((0, 20), (100, 60))
    )
    assert torch.equal(plain.clients.y, more.clients.y)
    torch.testing.assert_close(plain.clients.x, more.clients.x, atol=1e-6, rtol=0)


def test_pixels_are_scaled_by_white_and_the_images_are_left_alone() -> None:
    images = ImageDataset(
        "digits", torch.tensor([0, 4, 16], dtype=torch.uint8).reshape(3, 1, 1, 1), 16, torch.arange(3), 3, 3
    )
    federation = federation_of(images, partition(1, 2, 0, 1))
    pixel_of = dict(zip(federation.clients.y.tolist(), federation.clients.x.flatten().tolist(), strict=True))
    pixel_of[int(federation.test.y)] = federation.test.x.item()
    assert pixel_of == {0: 0.0, 1: 0.25, 2: 1.0}
    assert images.pixels.flatten().tolist() == [0, 4, 16]


# --- label skew ---------------------------------------------------------------------------------------------------


def labels(count: int = 2000, classes: int = 10) -> Tensor:
    return torch.randint(0, classes, (count,), generator=Stream(2).generator())


@pytest.mark.parametrize("alpha", [1e-6, 0.01, 0.5, 10.0, 1e6])
@pytest.mark.parametrize("clients", [1, 2, 30])
def test_label_skew_gives_every_example_to_a_client_and_every_client_an_example(alpha: float, clients: int) -> None:
    owners = skew_labels(labels(), clients, alpha, Stream(0))
    sizes = torch.bincount(owners, minlength=clients)
    assert owners.shape == (2000,)
    assert len(sizes) == clients
    assert sizes.min() >= 1


def test_as_many_examples_as_clients_are_one_each() -> None:
    assert sorted(skew_labels(labels(12), 12, 0.1, Stream(0)).tolist()) == list(range(12))


def test_dirichlet_shares_have_the_expected_spread() -> None:
    """A share of Dirichlet(a) over n clients has variance (1/n)(1 - 1/n) / (n a + 1)."""
    y = torch.arange(40_000) % 400
    owners = skew_labels(y, 4, 0.5, Stream(5))
    shares = torch.bincount(4 * y + owners, minlength=1600) / 100
    assert float(shares.var()) == pytest.approx(0.25 * 0.75 / 3, rel=0.1)


# --- groups without clients ---------------------------------------------------------------------------------------

KINDS = {"plain": {}, "skewed": {"dirichlet_alpha": 0.5}, "reused": {"reuse_images": True}}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_group_of_share_0_has_test_images_and_leaves_the_others_theirs(kind: str, at: int) -> None:
    plan = partition(8, 25, 60, 40, holdout_examples=5, **KINDS[kind])
    before = federation_of(numbered(400, 50), plan, TWO)
    groups = (*TWO[:at], Group("nobody", 0.0), *TWO[at:])
    after = federation_of(numbered(400, 50), replace(plan, test_examples=60), groups)
    assert torch.bincount(after.test.group).tolist() == [20, 20, 20]
    assert after.group_fractions[at] == 0
    assert after.groups_with_clients == [g for g in range(3) if g != at]
    for place in ("clients", "holdout"):
        mine, theirs = getattr(after, place), getattr(before, place)
        assert torch.equal(mine.x, theirs.x)
        assert torch.equal(mine.y, theirs.y)
        assert torch.equal(mine.offsets, theirs.offsets)
    assert torch.equal(after.shadow.x, before.shadow.x)
    assert at not in after.shadow.group
    assert [after.groups[g] for g in after.group.tolist()] == [before.groups[g] for g in before.group.tolist()]
    for g, group in enumerate(TWO):
        mine, theirs = after.test.of_group(after.groups.index(group.name)), before.test.of_group(g)
        assert torch.equal(mine.x, theirs.x)
        assert torch.equal(mine.y, theirs.y)
    parts = indices_by_part(after)
    if kind != "reused":
        everywhere = torch.cat(list(parts.values()))
        assert len(everywhere.unique()) == len(everywhere)
    assert not set(parts["test"].tolist()) & set(parts["clients"].tolist())


def test_a_group_of_share_0_shifts_its_test_images() -> None:
    groups = (Group("all", 1.0), Group("dark", 0.0, brightness=(0.5, 0.5)))
    images = white(100)
    test = federation_of(images, partition(4, 10, 10, 20), groups).test
    assert test.of_group(0).x.unique().tolist() == [1.0]
    assert test.of_group(1).x.unique().tolist() == [0.5]


def test_all_is_the_name_of_the_only_group_with_clients() -> None:
    data, plan = load_dataset("digits"), Partition(4, 10, test_examples=20)
    plan.check(data, [Group("all", 1.0), Group("upright", 0.0)])
    with pytest.raises(InputError, match="'all' cannot be the name of one of several groups"):
        plan.check(data, [Group("all", 0.5), Group("upright", 0.5)])


@pytest.mark.parametrize(
    ("kind", "digest"),
    [
        ("plain", "9199855a0834fffb"),
        ("skewed", "d38cf56c63f98f08"),
        ("reused", "76070797c3365853"),
        ("skewed alone", "a884a31d45fa13c0"),
    ],
)
def test_the_partition_of_a_seed_never_changes(kind: str, digest: str) -> None:
    """A seed gives the same federation in every version, or published runs could not be repeated.

    "skewed" changed once: holdouts have their client's skew. Without holdouts it is as before: "skewed alone".
    """
    kind, holdout = (kind.partition(" ")[0], 0 if kind.endswith("alone") else 5)
    plan = partition(10, 20, 101, 51, holdout_examples=holdout, **KINDS[kind])
    federation = federation_of(numbered(450, 100), plan, TWO)
    groups = [federation.group, federation.clients.sizes, federation.shadow.group, federation.test.group]
    parts = [*indices_by_part(federation).values(), *groups]
    assert hashlib.sha256(torch.cat(parts).numpy().tobytes()).hexdigest()[:16] == digest


def test_holdouts_have_their_client_s_own_skew() -> None:
    """With few classes per client, most of a holdout is of classes that its client trains on."""
    federation = federation_of(
        numbered(2000, 0), partition(10, 120, 100, 50, holdout_examples=30, dirichlet_alpha=0.05), TWO
    )
    shared = []
    for i in range(10):
        own, out = (shards.y[shards.indices_of(i)] for shards in (federation.clients, federation.holdout))
        assert len(out) >= min(1, len(own) - 1)
        shared += torch.isin(out % 10, (own % 10).unique()).tolist()
    assert len(shared) > 250
    assert sum(shared) > 0.95 * len(shared)


# --- determinism ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [None, 0.5])
def test_a_seed_decides_everything_and_another_seed_something_else(alpha: float | None) -> None:
    group = (Group("turned", 1.0, rotation=(0, 90)),)
    plan = partition(10, 10, 50, 40, holdout_examples=2, dirichlet_alpha=alpha)
    first, again, other = (federation_of(noise(300), plan, group, seed) for seed in (1, 1, 2))
    for place in ("clients", "holdout", "shadow", "test"):
        mine, same, theirs = (getattr(federation, place) for federation in (first, again, other))
        assert torch.equal(mine.x, same.x)
        assert torch.equal(mine.y, same.y)
        assert not torch.equal(mine.y, theirs.y)


def test_global_generators_and_images_stay_unchanged() -> None:
    images = noise(300)
    kept = images.pixels.clone()
    torch_state, numpy_state = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    federation_of(images, partition(10, 10, 50, 40, dirichlet_alpha=0.5), (Group("turned", 1.0, rotation=(0, 90)),))
    assert torch.equal(images.pixels, kept)
    assert torch.equal(torch.random.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


# --- what is refused --------------------------------------------------------------------------------------------------


def test_as_many_images_as_there_are_is_allowed_and_one_more_is_not() -> None:
    plan = partition(10, 20, 40, 40, holdout_examples=2)
    assert len(federation_of(numbered(250, 50), plan)) == 10
    with pytest.raises(InputError, match=r"301 images \(10 clients x 22 \+ 41 shadow \+ 40 test\) \(got 300\)"):
        federation_of(numbered(250, 50), replace(plan, shadow_examples=41))
    with pytest.raises(InputError, match=r"numbers .*got 299"):
        federation_of(numbered(249, 50), plan)


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ((0.25, 0.8), r"must sum to 1 \(got 0\.25 \(a\) \+ 0\.8 \(b\) = 1\.05\)"),
        ((0.25, 0.7501), r"1\.0001\)"),
        ((0.0, 0.0), r"above 0 \(got 0 \(a\) \+ 0 \(b\)\)"),
        ((0.02, 0.98), r"0\.02 of 10 clients\)"),
    ],
)
@pytest.mark.parametrize("reuse", [False, True])
def test_shares_that_are_no_partition_are_refused(shares: tuple[float, ...], sentence: str, reuse: bool) -> None:
    groups = tuple(Group(name, share) for name, share in zip("ab", shares, strict=True))
    with pytest.raises(InputError, match=sentence):
        federation_of(numbered(300, 0), partition(10, 10, 0, 20, reuse_images=reuse), groups)


def test_shares_that_sum_to_one_but_for_rounding_are_taken() -> None:
    thirds = tuple(Group(name, 1 / 3) for name in "abc")
    assert torch.bincount(federation_of(numbered(300, 0), partition(9, 10, 0, 20), thirds).group).tolist() == [3, 3, 3]


def test_reused_images_go_to_every_group_once_and_to_one_of_clients_shadow_and_test():
    plan = partition(8, 25, 60, 80, holdout_examples=5, reuse_images=True)
    groups = (Group("few", 0.25), Group("many", 0.75))
    federation = federation_of(numbered(300, 50), plan, groups)
    parts = indices_by_part(federation)
    by_group = []
    for index in range(2):
        clients = torch.nonzero(federation.group == index).squeeze(1)
        mine = [shards.take(clients) for shards in (federation.clients, federation.holdout)]
        by_group.append(torch.cat([shards.y[shards.indices] for shards in mine]))
        assert len(by_group[-1].unique()) == len(by_group[-1]) == 30 * len(clients)
    few, many = by_group
    assert set(few.tolist()) < set(many.tolist())
    assert not torch.equal(few[:50], many[:50]), "each group has an order of its own"
    test = [federation.test.y[federation.test.group == index] for index in range(2)]
    assert set(test[0].tolist()) == set(test[1].tolist())
    assert len(test[0].unique()) == 40
    disjoint = [set(part.tolist()) for part in (many, parts["shadow"], test[0])]
    assert sum(map(len, disjoint)) == len(set.union(*disjoint)) == 180 + 60 + 40
    assert disjoint[2] <= set(range(300, 350)), "the official test images are tested on"


def test_reused_images_fill_the_set_to_the_last_and_no_further():
    quarters = tuple(Group(str(turn), 0.25, rotation=(turn, turn)) for turn in (0, 90, 180, 270))
    images = numbered(60, 10)
    federation = federation_of(images, partition(24, 10, 0, 40, reuse_images=True), quarters)
    assert len(federation.clients.indices) == 240
    assert torch.bincount(federation.clients.y).tolist() == [4] * 60
    with pytest.raises(InputError, match=r"71 images \(6 clients x 10 \+ 0 shadow \+ 11 test in the largest group\)"):
        federation_of(images, partition(24, 10, 0, 44, reuse_images=True), quarters)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"clients": 0}, r"'clients' must be at least 1 \(got 0"),
        ({"test_examples": 0}, r"'test_examples' must be at least 1 \(got 0"),
        ({"reuse_images": True, "dirichlet_alpha": 1.0}, "'reuse_images' and 'dirichlet_alpha' are not allowed"),
    ],
)
def test_a_partition_refuses_values_out_of_range(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        Partition(**({"clients": 4, "examples_per_client": 10, "test_examples": 10} | changes))


def test_without_stream_and_preferences_it_is_the_federation_of_a_run_with_seed_0():
    plan, groups = partition(4, 5, 0, 10), (Group("all", 1.0, rotation=(0, 90)),)
    found = partition_dataset(load_dataset("digits"), plan, groups)
    data = {"source": "digits", "clients": 4, "examples_per_client": 5, "test_examples": 10}
    data |= {"groups": {"all": {"share": 1.0, "rotation": [0, 90]}}}
    table = {"data": data, "model": {"name": "mlp"}, "algorithm": {"name": "fedavg", "rounds": 1}}
    _, simulation = build(parse_config(table | {"red_team": {"every": 0, "attack": "gap"}}, "a test"))
    assert torch.equal(found.clients.x, simulation.federation.clients.x)
    assert torch.equal(found.test.x, simulation.federation.test.x)
    preferences = Federation.from_tensors([([[0.0]], [0])] * 4, test=([[0.0]], [0])).preferences
    assert torch.equal(found.preferences.threshold, preferences.threshold)
    assert torch.equal(found.preferences.beta, preferences.beta)
