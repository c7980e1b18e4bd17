"""Shards of unequal sizes, federations of one's own tensors, thresholds of clients and their weights of risk."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Examples, Federation, GroupedExamples, Shards, draw_preferences
from shoal.data.content import fingerprint

SIZES = [3, 0, 5, 1, 4]


def piece(owner: int, size: int) -> tuple[Tensor, Tensor]:
    """Examples that encode their owner and their number."""
    y = 10 * owner + torch.arange(size)
    return torch.stack([y, -y], dim=1).float(), y


def ragged() -> Shards:
    return Shards.from_pairs([piece(i, size) for i, size in enumerate(SIZES)])


def labels_by_owner(shards: Shards) -> list[list[int]]:
    return [shards.y[shards.indices_of(i)].tolist() for i in range(len(shards))]


LABELS = [[10 * i + j for j in range(size)] for i, size in enumerate(SIZES)]


def test_owners_have_the_examples_they_were_given() -> None:
    shards = ragged()
    assert len(shards) == 5
    assert shards.sizes.tolist() == SIZES
    assert labels_by_owner(shards) == LABELS
    assert (shards.x[:, 0] == shards.y).all()
    assert shards.owners().tolist() == [0] * 3 + [2] * 5 + [3] + [4] * 4


@pytest.mark.parametrize("owners", [[0, 1, 2, 3, 4], [4, 2, 0], [1], [3, 3, 2, 3], [1, 1], []])
def test_take_is_those_owners_in_that_order_sharing_the_examples(owners: list[int]) -> None:
    shards = ragged()
    taken = shards.take(torch.tensor(owners, dtype=torch.int64))
    assert labels_by_owner(taken) == [LABELS[i] for i in owners]
    assert taken.sizes.tolist() == [SIZES[i] for i in owners]
    assert taken.owners().tolist() == [at for at, i in enumerate(owners) for _ in LABELS[i]]
    assert taken.x is shards.x
    assert labels_by_owner(shards) == LABELS


def test_shards_may_overlap() -> None:
    shards = Shards(torch.arange(4.0), torch.arange(4), torch.tensor([0, 1, 2, 1, 3]), torch.tensor([0, 3, 5]))
    assert labels_by_owner(shards) == [[0, 1, 2], [1, 3]]
    assert labels_by_owner(shards.take(torch.tensor([1, 0]))) == [[1, 3], [0, 1, 2]]


def test_examples_of_a_group_keep_their_order_and_layout() -> None:
    x = torch.rand(5, 2, 3, 3)
    examples = GroupedExamples(x, torch.arange(5), torch.tensor([1, 0, 1, 1, 0]))
    ones = examples.of_group(1)
    assert ones.y.tolist() == [0, 2, 3]
    assert torch.equal(ones.x, x[[0, 2, 3]])
    assert ones.group.tolist() == [1, 1, 1]
    assert len(examples.of_group(2)) == 0
    taken = examples.take(torch.tensor([4, 4, 0]))
    assert taken.y.tolist() == [4, 4, 0]
    assert torch.equal(taken.x, x[[4, 4, 0]])


# --- federations --------------------------------------------------------------------------------------------------


def examples(size: int, width: int = 2, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(size, width, generator=draw), torch.randint(0, 4, (size,), generator=draw)


CLIENTS = [examples(size, seed=i) for i, size in enumerate((3, 6, 2))]


def make_federation(**arguments: Any) -> Federation:
    x, y = examples(5)
    test = Examples(x, y, ["a", "b", "a", "b", "b"]) if "groups" in arguments else (x, y)
    return Federation.from_tensors(**({"clients": CLIENTS, "test": test} | arguments))


def test_a_federation_of_one_s_own_tensors() -> None:
    federation = make_federation(
        groups=["b", "a", "b"],
        holdout=[examples(i + 1, seed=9) for i in range(3)],
        threshold=torch.tensor([0.5, 0.6, 1]),
    )
    assert len(federation) == 3
    assert federation.groups == ("b", "a")
    assert federation.group.tolist() == [0, 1, 0]
    assert federation.group_fractions.tolist() == pytest.approx([2 / 3, 1 / 3])
    assert federation.clients.sizes.tolist() == [3, 6, 2]
    for i, (x, y) in enumerate(CLIENTS):
        assert torch.equal(federation.clients.x[federation.clients.indices_of(i)], x)
        assert torch.equal(federation.clients.y[federation.clients.indices_of(i)], y)
    assert federation.holdout.sizes.tolist() == [1, 2, 3]
    assert federation.preferences.threshold.tolist() == pytest.approx([0.5, 0.6, 1])
    assert federation.preferences.beta.tolist() == [0.5] * 3
    assert federation.test.group.tolist() == [1, 0, 1, 0, 0]


@pytest.mark.parametrize(
    ("clients", "got"),
    [
        ([0, 1, 2, 3, 0], "3"),
        ([0, 1, 2, -2, 0], "-2"),
        ([0, 1], "list of 2"),
        (["a"] * 5, "list of 5"),
        ([0.0] * 5, "list of 5"),
        ([True] * 5, "list of 5"),
    ],
)
def test_clients_of_test_examples_must_be_positions_of_clients(clients, got) -> None:
    test = Examples(*examples(5), ["all"] * 5, clients)
    with pytest.raises(InputError, match=rf"must be 5 integers from -1 to 2 \(got {got}\)$"):
        make_federation(test=test)


def test_defaults_of_a_federation_of_tensors() -> None:
    federation = make_federation(clients=[(torch.rand(2, 2), torch.tensor([0, 6])), examples(3)])
    assert federation.classes == 7
    assert federation.groups == ("all",)
    assert len(federation.shadow) == 0
    assert federation.shadow.x.shape == (0, 2)
    assert federation.holdout.sizes.tolist() == [0, 0]


def test_permuted_clients_take_everything_with_them() -> None:
    federation = make_federation(
        groups=["b", "a", "b"],
        holdout=[examples(i + 1, seed=9 + i) for i in range(3)],
        threshold=torch.tensor([0.5, 0.6, 0.7]),
        beta=torch.tensor([0.1, 0.2, 0.3]),
    )
    order = [2, 0, 1]
    moved = federation.take(torch.tensor(order))
    assert moved.ids.tolist() == order
    assert moved.group.tolist() == [0, 0, 1]
    assert moved.groups == federation.groups
    assert moved.preferences.threshold.tolist() == pytest.approx([0.7, 0.5, 0.6])
    assert moved.preferences.beta.tolist() == pytest.approx([0.3, 0.1, 0.2])
    for place in ("clients", "holdout"):
        there, here = getattr(moved, place), getattr(federation, place)
        assert labels_by_owner(there) == [labels_by_owner(here)[i] for i in order]
        assert there.sizes.tolist() == [int(here.sizes[i]) for i in order]
    assert moved.test is federation.test
    assert federation.ids.tolist() == [0, 1, 2]
    assert federation.names is moved.names is None
    assert replace(federation, names=("x", "y", "z")).take(torch.tensor(order)).names == ("z", "x", "y")
    back = moved.take(torch.tensor([1, 2, 0]))
    assert back.ids.tolist() == [0, 1, 2]
    assert labels_by_owner(back.clients) == labels_by_owner(federation.clients)


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (torch.rand(2, 3), "rows"),
        (torch.zeros(2, 3, dtype=torch.int64), "texts"),
        (torch.rand(2, 1, 4, 4), "images"),
        (torch.rand(2, 4, 4), "examples"),
    ],
)
def test_kind_of_examples_by_their_shape(x: Tensor, kind: str) -> None:
    one = (x, torch.tensor([0, 1]))
    assert Federation.from_tensors([one], test=one).kind == kind


@pytest.mark.parametrize("part", ["test", "shadow", "holdout"])
def test_a_set_of_another_width_is_refused(part: str) -> None:
    other = examples(4, width=5)
    with pytest.raises(InputError, match=r"must have shape \(2,\), like client 0's \(got \(5,\)\)"):
        make_federation(**{part: [other] * 3 if part == "holdout" else other})


PAPER = (0.5, 0.8)


def test_thresholds_are_uniform_in_their_range() -> None:
    threshold = draw_preferences(4000, PAPER, 0.5, Stream(0)).threshold
    assert threshold.shape == (4000,)
    assert threshold.min() >= 0.5
    assert threshold.max() <= 0.8
    assert stats.kstest(threshold.numpy(), stats.uniform(0.5, 0.3).cdf).pvalue > 0.001


def test_thresholds_come_from_the_seed_and_from_nothing_else() -> None:
    first = draw_preferences(50, PAPER, 0.5, Stream(1)).threshold
    torch.rand(3)
    assert torch.equal(draw_preferences(50, PAPER, "threshold", Stream(1)).threshold, first)
    assert not torch.equal(draw_preferences(50, PAPER, 0.5, Stream(2)).threshold, first)


def test_beta_threshold_weighs_risk_by_the_threshold() -> None:
    """The most tolerant client weighs loss only, the least tolerant risk only."""
    preferences = draw_preferences(200, PAPER, "threshold", Stream(0))
    expected = (0.8 - preferences.threshold) / 0.3
    torch.testing.assert_close(preferences.beta, expected)
    assert 0 <= preferences.beta.min() < 0.05
    assert 0.95 < preferences.beta.max() <= 1
    assert np.corrcoef(preferences.beta, preferences.threshold)[0, 1] == pytest.approx(-1)


@pytest.mark.parametrize("beta", [0, 0.25, 1, 1.0])
def test_one_beta_for_all(beta: float) -> None:
    preferences = draw_preferences(3, PAPER, beta, Stream(0))
    assert preferences.beta.tolist() == [beta] * 3
    assert preferences.beta.dtype == torch.float64


def test_one_beta_per_client_and_alpha() -> None:
    preferences = draw_preferences(3, PAPER, [0.0, 0.25, 1.0], Stream(0))
    assert preferences.beta.tolist() == [0, 0.25, 1]
    assert preferences.alpha.tolist() == [1, 0.75, 0]


@pytest.mark.parametrize(
    ("bounds", "beta", "sentence"),
    [
        ((0.4, 0.8), 0.5, r"'thresholds' must be \[low, high\] with 0\.5 <= low <= high <= 1 \(got \[0\.4, 0\.8\]\)"),
        ((0.8, 0.6), 0.5, r"'thresholds' must be \[low, high\] with 0\.5 <= low <= high <= 1 \(got \[0\.8, 0\.6\]\)"),
        ((float("nan"), 0.6), 0.5, r"'thresholds' must be \[low, high\] with 0\.5 <= low <= high <= 1 \(got \[nan"),
        (PAPER, 1.5, r"'beta' must be in \[0, 1\] \(got 1\.5\)"),
        (PAPER, float("nan"), r"'beta' must be in \[0, 1\] \(got nan\)"),
        (PAPER, [0.5, 2.0, 0.5], r"'beta' must be in \[0, 1\] \(got 2\)"),
        (PAPER, [0.5, 0.5], r"'beta' must be one number or 3 numbers, one per client \(got 2 numbers\)"),
        (PAPER, "loss", r"'beta' must be a number in \[0, 1\] or"),
        ((0.7, 0.7), "threshold", "'beta' ="),
    ],
)
def test_what_is_refused(bounds: tuple[float, float], beta: float | str | list[float], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        draw_preferences(3, bounds, beta, Stream(0))


def test_drawn_limits_say_so_and_change_no_hash():
    drawn = draw_preferences(3, (0.5, 0.8), 0.5, Stream(0))
    assert drawn.drawn
    assert drawn.take(torch.tensor([2, 0])).drawn
    assert not draw_preferences(3, (0.7, 0.7), 0.5, Stream(0)).drawn
    one = ([[0.5]], [0])
    given = Federation.from_tensors([one] * 3, test=one, threshold=drawn.threshold, beta=drawn.beta, classes=2)
    assert not given.preferences.drawn
    assert fingerprint(given) == fingerprint(replace(given, preferences=drawn))
