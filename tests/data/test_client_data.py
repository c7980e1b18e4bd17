"""Clients that have their examples already: what is held out of each, and what decides the scale of columns."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from refused_input import refused
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import ClientDataset, ClientSplit, Standardizer, draw_preferences, federation_of_clients
from shoal.data.partition import ClientIndices, PartitionIndices

STREAM = Stream(0, ("data",))


def dataset(sizes=(10, 20, 5), **changes):
    """Clients c0, c1, ... whose first column counts the examples and whose second is 7."""
    total = sum(sizes)
    rows = pd.DataFrame({"count": np.arange(float(total)), "constant": 7.0})
    given = {
        "clients": [f"c{i}" for i, size in enumerate(sizes) for _ in range(size)],
        "labels": ["ab"[i % 2] for i in range(total)],
    }
    return ClientDataset.from_names("'rows'", rows, **given | changes)


def federation(data, split, stream=STREAM):
    preferences = draw_preferences(len(data.client_names), (0.5, 0.8), 0.5, stream)
    return federation_of_clients(data, split.draw(data, stream), preferences)


def test_every_example_goes_to_one_part_of_its_own_client():
    data, split = dataset(), ClientSplit(0.2, holdout_fraction=0.1, shadow_fraction=0.2)
    drawn = split.draw(data, STREAM)
    parts = [drawn.clients.indices, drawn.holdout.indices, drawn.shadow, drawn.test]
    assert torch.cat(parts).sort().values.tolist() == list(range(35))
    assert [torch.bincount(data.client[part]).tolist() for part in parts] == [
        [5, 10, 2],
        [1, 2, 1],
        [2, 4, 1],
        [2, 4, 1],
    ]
    assert [data.client[own].unique().tolist() for own in drawn.clients.by_client()] == [[0], [1], [2]]


def test_a_client_s_draw_does_not_depend_on_the_others():
    alone, together = dataset((10,)), dataset((10, 20))
    drawn = [ClientSplit(0.3).draw(data, STREAM).clients.by_client()[0].tolist() for data in (alone, together)]
    assert drawn[0] == drawn[1]
    assert ClientSplit(0.3).draw(alone, Stream(1)).clients.by_client()[0].tolist() != drawn[0]


def test_columns_are_standardised_by_the_training_examples_alone():
    data, split = dataset(), ClientSplit(0.2, shadow_fraction=0.2)
    made = federation(data, split)
    trained = made.clients.x[:, 0].double()
    assert float(trained.mean()) == pytest.approx(0, abs=1e-6)
    assert float(trained.std(correction=0)) == pytest.approx(1, abs=1e-6)
    # What test and shadow set hold changes nothing of the training examples.
    drawn = split.draw(data, STREAM)
    data.examples.loc[torch.cat([drawn.test, drawn.shadow]).numpy(), "count"] *= 1000
    again = federation(data, split)
    assert torch.equal(again.clients.x, made.clients.x)
    assert not torch.equal(again.test.x, made.test.x)


def test_a_column_that_is_constant_in_training_becomes_zero():
    made = federation(dataset(), ClientSplit(0.2))
    assert made.clients.x[:, 1].tolist() == [0.0] * 28


def test_a_scale_of_other_examples_is_taken_and_of_other_columns_refused():
    data, scale = dataset(), Standardizer(("count", "constant"), (10.0, 5.0), (2.0, 4.0))
    drawn, preferences = ClientSplit().draw(data, STREAM), draw_preferences(3, (0.5, 0.8), 0.5, STREAM)
    made = federation_of_clients(data, drawn, preferences, scale)
    counts = torch.tensor(data.examples["count"])[drawn.clients.indices]
    expected = torch.stack([(counts - 10) / 2, torch.full((len(counts),), 0.5).double()], dim=1)
    assert torch.equal(made.clients.x[made.clients.indices], expected.float())
    sentence = refused(lambda: federation_of_clients(data, drawn, preferences, replace(scale, inputs=("count", "b"))))
    assert "'count', 'constant'" in sentence


def test_pictures_are_scaled_to_one_and_stay_with_their_labels():
    pixels = torch.arange(12, dtype=torch.uint8)[:, None, None, None].expand(12, 3, 2, 2) * 20
    data = ClientDataset.from_names(
        "'p'", pixels, clients=["a"] * 6 + ["b"] * 6, labels=[str(i % 2) for i in range(12)]
    )
    made = federation(data, ClientSplit(0.5))
    assert made.clients.x.shape == (6, 3, 2, 2)
    numbers = (made.clients.x[:, 2, 1, 1] * 255 / 20).round().long()
    assert torch.equal(numbers % 2, made.clients.y)
    assert set((numbers // 6)[made.clients.indices_of(1)].tolist()) == {1}
    assert made.clients.x.is_contiguous(memory_format=torch.channels_last)


def test_groups_are_those_of_the_clients_in_sorted_order():
    data = dataset((4, 4, 4), groups=["south"] * 4 + ["north"] * 8)
    made = federation(data, ClientSplit(0.25))
    assert (made.groups, made.group.tolist(), made.test.group.tolist()) == (("north", "south"), [1, 0, 0], [1, 0, 0])
    assert data.shares == {"north": pytest.approx(2 / 3), "south": pytest.approx(1 / 3)}


def test_names_are_numbered_in_sorted_order_integers_by_size():
    data = dataset((2, 2, 2), clients=["10", "10", "9", "9", "-1", "-1"], labels=["x", "y", "Y", "x", "y", "x"])
    assert (data.client_names, data.class_names) == (("-1", "9", "10"), ("Y", "x", "y"))
    assert data.client.tolist() == [2, 2, 1, 1, 0, 0]
    lines = " ".join(data.description())
    assert "0 '-1' (2), 1 '9' (2), 2 '10' (2)" in lines
    assert "0 'Y' (1), 1 'x' (3), 2 'y' (2)" in lines


@pytest.mark.parametrize(
    ("size", "split", "parts"),
    [
        (1, ClientSplit(), [1, 0, 0, 0]),
        (3, ClientSplit(0.2, 0.2, 0.2), [1, 0, 1, 1]),
        (2, ClientSplit(0.2, 0.2, 0.2), [1, 0, 0, 1]),
        (5, ClientSplit(0.95), [1, 0, 0, 4]),
    ],
)
def test_a_client_with_few_examples_trains_on_one_and_has_the_rest_held_out(size, split, parts):
    data = dataset((5, size))
    drawn = split.draw(data, STREAM)
    held = [drawn.clients.by_client()[1], drawn.shadow, drawn.holdout.by_client()[1], drawn.test]
    assert [int((data.client[each] == 1).sum()) for each in held] == parts


def test_a_group_whose_clients_have_one_example_each_is_named():
    data = dataset((4, 1, 1), groups=["a"] * 4 + ["b"] * 2)
    assert "'rows'" in refused(lambda: ClientSplit().draw(data, STREAM))


def test_clients_below_the_minimum_are_left_out_with_a_warning():
    data = dataset((6, 1, 4), groups=["a"] * 7 + ["b"] * 4)
    assert data.with_at_least(1) is data
    left = data.with_at_least(4)
    assert (left.client_names, left.group.tolist(), len(left.labels)) == (("c0", "c2"), [0, 1], 10)
    assert left.examples["count"].tolist() == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert left.warnings == ("'rows': left out 1 client with fewer than 4 examples: 'c1' (1)",)
    assert "'min_examples'" in refused(lambda: data.with_at_least(7))


def test_names_that_differ_only_by_case_or_spaces_are_said():
    data = dataset(
        (2, 2, 2), clients=["C1", "C1", "c1", "c1", "c1 ", "c1 "], labels=["Ill", "well"] * 2 + ["ill", "well"]
    )
    assert data.warnings == (
        "'rows': the clients 'C1', 'c1', 'c1 ' are counted as 3, though their names differ only by case or spaces",
        "'rows': the classes 'Ill', 'ill' are counted as 2, though their names differ only by case or spaces",
    )


@pytest.mark.parametrize("impute", ["mean", "median", "most-frequent"])
def test_held_out_rows_change_nothing_of_how_columns_become_inputs(impute):
    nan = float("nan")
    trained = {"age": [1, 2, nan, 4], "sex": ["f", "x", "f", nan]}

    def data(test):
        rows = pd.DataFrame({name: [*cells, *test[name]] for name, cells in trained.items()})
        named = {"clients": ["a"] * 3 + ["b"] * 3, "labels": ["u", "v"] * 3}
        return ClientDataset.from_names("'rows'", rows, **named, impute=impute)

    def made(data):
        owned = ClientIndices(torch.arange(4), torch.tensor([3, 1])), ClientIndices.equal(none, 2)
        parts = PartitionIndices(*owned, none, torch.tensor([4, 5]))
        preferences = draw_preferences(2, (0.5, 0.8), 0.5, STREAM)
        return data.standardizer(parts), federation_of_clients(data, parts, preferences)

    none = torch.empty(0, dtype=torch.int64)
    scale, plain = made(data({"age": [9, 5], "sex": ["f", "x"]}))
    other, changed = made(data({"age": [1e6, -5], "sex": ["m", "m"]}))
    assert scale == other
    assert torch.equal(plain.clients.x, changed.clients.x)
    # By hand: known ages 1, 2, 4; words f, x, f, and the most frequent, f.
    fill = {"mean": 7 / 3, "median": 2.0, "most-frequent": 1.0}[impute]
    ages = torch.tensor([1, 2, fill, 4]).double()
    expected = (ages - ages.mean()) / ages.std(correction=0)
    assert torch.allclose(plain.clients.x[:, 0].double(), expected, atol=1e-6)
    assert plain.clients.x[:, 1:].tolist() == [[1, 0], [0, 1], [1, 0], [1, 0]]
    # A word that no training row has is none of the inputs.
    assert changed.test.x[:, 1:].tolist() == [[0, 0], [0, 0]]
    assert scale.words == ((), ("f", "x"))


def test_words_of_a_node_are_encoded_as_the_server_s():
    scale = Standardizer.fit(pd.DataFrame({"sex": ["f", "m"]}), "mean")
    assert scale.transform(pd.DataFrame({"sex": ["m", "x", None]})).tolist() == [[0, 1], [0, 0], [1, 0]]
    with pytest.raises(InputError, match=r"'sex' must hold words, like the training rows \(got numbers\)"):
        scale.transform(pd.DataFrame({"sex": [1.0]}))


def test_a_class_that_is_only_held_out_is_named():
    data = dataset((4, 4))
    held = ClientSplit(0.25).draw(data, STREAM).test
    one = dataset((4, 4), labels=["rare" if i == held[0] else "ab"[i % 2] for i in range(8)])
    words = refused(lambda: ClientSplit(0.25).draw(one, STREAM))
    assert "'rare', as its only example is held out" in words
    two = dataset((4, 4), labels=["rare" if i in held.tolist() else "ab"[i % 2] for i in range(8)])
    assert "all its 2 examples are held out" in refused(lambda: ClientSplit(0.25).draw(two, STREAM))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": ["x"] * 8}, "least 2 classes (got only 'x')"),
        ({"labels": [], "clients": []}, "'rows' has no examples"),
    ],
)
def test_examples_that_make_no_federation_are_one_sentence(changes, words):
    assert words in refused(lambda: dataset((4, 4), **changes))
