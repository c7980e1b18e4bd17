"""One's own examples: arrays, data sets and tables become the same federation as tensors, and groups go by name."""

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset

from refused_input import refused
from shoal import (
    Columns,
    Federation,
    Group,
    InputError,
    Partition,
    TableDataset,
    partition_dataset,
)
from shoal.config.build import build
from shoal.config.schema import parse_config
from shoal.data import federation_of_clients, load_table
from shoal.data.partition import ClientIndices, PartitionIndices
from shoal.data.user.arrays import labelled_arrays

CLIENTS = [(torch.rand(4, 3, generator=torch.Generator().manual_seed(i)), torch.tensor([0, 1, 2, i])) for i in range(3)]
TEST = (torch.rand(6, 3, generator=torch.Generator().manual_seed(9)), torch.tensor([0, 1, 2, 0, 1, 2]))
PLAIN = Federation.from_tensors(CLIENTS, test=TEST, classes=3)

SAME = {
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "numpy": lambda x, y: (x.numpy(), y.numpy()),
    "numpy inputs, torch labels": lambda x, y: (x.numpy(), y),
    "float64": lambda x, y: (x.double(), y),
    "read-only numpy": lambda x, y: (np.frombuffer(x.numpy().tobytes(), "float32").reshape(x.shape), y),
    "int32 labels": lambda x, y: (x, y.int()),
    "uint8 labels": lambda x, y: (x, y.to(torch.uint8)),
    "whole float labels": lambda x, y: (x, y.float()),
    "a column of labels": lambda x, y: (x, y[:, None]),
    "one-hot labels": lambda x, y: (x, torch.nn.functional.one_hot(y, 3)),
    "lists as pairs": lambda x, y: [x, y],
    "a data set": TensorDataset,
    "a data set of numbers": lambda x, y: TensorDataset(x, y.int()),
    "a loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=3),
    "a loader of dictionaries": lambda x, y: DataLoader(
        [{"label": label, "img": row} for row, label in zip(x, y.tolist(), strict=True)], batch_size=3
    ),
    "pandas": lambda x, y: (pd.DataFrame(x.numpy()), pd.Series(y.numpy(), index=range(5, 5 + len(y)))),
}


@pytest.mark.parametrize("form", SAME.values(), ids=SAME.keys())
def test_arrays_of_any_form_give_the_same_federation(form):
    federation = Federation.from_tensors([form(*each) for each in CLIENTS], test=form(*TEST), classes=3)
    for name in ("clients", "test"):
        here, there = getattr(federation, name), getattr(PLAIN, name)
        assert here.x.dtype == torch.float32
        assert torch.equal(here.x, there.x)
        assert here.y.dtype == torch.int64
        assert torch.equal(here.y, there.y)


def test_a_table_is_the_same_federation():
    def table(pairs, groups):
        frames = [
            pd.DataFrame(x.numpy(), columns=["a", "b", "c"]).assign(who=f"clinic {i}", label=y.numpy(), area=groups[i])
            for i, (x, y) in enumerate(pairs)
        ]
        return pd.concat(frames)

    areas = ["north", "south", "north"]
    rows = table(CLIENTS, areas)
    columns = Columns(client="who", label="label", group="area")
    test = pd.concat([table([TEST], ["south"]), table([TEST], ["north"])])
    federation = Federation.from_table(rows, columns, test=test, shadow=test)
    assert federation.groups == ("north", "south")
    assert federation.group.tolist() == [0, 1, 0]
    assert federation.test.group.tolist() == [1] * 6 + [0] * 6
    x = PLAIN.clients.x.double()
    scaled = ((x - x.mean(dim=0)) / x.std(dim=0, correction=0)).float()
    assert torch.allclose(federation.clients.x, scaled, atol=1e-6)
    assert torch.equal(federation.clients.y, PLAIN.clients.y)
    assert federation.names == tuple(dict.fromkeys(rows["who"].map(str)))

    class Dataset:
        """What `datasets.Dataset` of Hugging Face has."""

        def __init__(self, frame):
            self.frame = frame
            self.column_names = list(frame.columns)

        def __getitem__(self, name):
            return self.frame[name].tolist()

    again = Federation.from_table(Dataset(rows), columns, test=Dataset(test))
    assert torch.equal(again.clients.x, federation.clients.x)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
def test_pictures_of_pil_are_grey_or_rgb_as_pillow_converts_them(mode):
    noise = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).quantize(7) if mode[0] == "P" else Image.fromarray(noise)
    picture = picture.convert(mode)
    channels = "L" if mode in ("1", "L", "LA") else "RGB"
    expected = np.atleast_3d(np.asarray(picture.convert(channels))).transpose(2, 0, 1) / 255
    pair = ([picture] * 2, [0, 1])
    table = pd.DataFrame({"who": ["a", "b"], "label": [0, 1], "picture": pair[0]})
    by_column = Federation.from_table(table, Columns(client="who", label="label"), test=table)
    for federation in (Federation.from_tensors([pair], test=pair), by_column):
        np.testing.assert_allclose(federation.clients.x.numpy(), np.stack([expected] * 2), atol=1e-6)


@pytest.mark.parametrize("mode", ["I", "I;16", "F", "La"])
def test_pictures_that_pillow_would_cut_off_are_refused(mode):
    pictures = [Image.new(mode, (5, 4))] * 2
    with pytest.raises(InputError, match=f"client 0 has a picture .*{mode}"):
        Federation.from_tensors([(pictures, [0, 1])], test=(pictures, [0, 1]))


def test_a_table_may_have_a_column_of_pictures():
    pixels = [np.full((2, 2), value, "float32").tolist() for value in (0.1, 0.2, 0.3)]
    table = pd.DataFrame({"image": pixels, "who": [1, 1, 2], "label": [0, 1, 0]})
    federation = Federation.from_table(table, Columns(client="who", label="label"), test=table)
    assert federation.clients.x.shape == (3, 2, 2)
    assert federation.clients.x[:, 0, 0].tolist() == pytest.approx([0.1, 0.2, 0.3])


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"client": "who", "label": "who"}, r"'label' and 'client' must be different columns \(got 'who' for both\)"),
        ({"client": "who", "label": "ill", "group": "ill"}, r"'group' must be different columns \(got 'ill' for"),
        ({"client": "who", "label": "ill", "inputs": ("age", "ill")}, r"'ill'\)"),
        ({"client": "who", "label": "ill", "inputs": ("age", "age")}, r"'age' twice\)"),
    ],
)
def test_columns_with_two_meanings_are_refused(names, words):
    with pytest.raises(InputError, match=words):
        Columns(**names)
    with pytest.raises(InputError, match=r"'columns' must be a Columns, such as Columns\(.* \(got 'who'"):
        Federation.from_table(pd.DataFrame({"who": [1]}), "who", test=pd.DataFrame())


# --- sets to be partitioned ---------------------------------------------------------------------------------------

LABELLED = {
    "rows": (torch.rand(4, 3), "rows", lambda data: data.rows.shape == (4, 3)),
    "a frame of integers": (pd.DataFrame({"a": range(4)}), "rows", lambda data: data.rows.dtype == torch.float32),
    "words": (torch.tensor([[1, 7], [2, 0], [3, 0], [1, 1]]), "texts", lambda data: data.vocabulary == 7),
    "bytes": (np.full((4, 5, 5), 9, "uint8"), "images", lambda data: data.white == 255 and data.pixels.shape[1] == 1),
    "pictures": (torch.rand(4, 3, 5, 5), "images", lambda data: data.white == 1 and data.pixels.shape[1] == 3),
}


@pytest.mark.parametrize("case", list(LABELLED))
def test_a_pair_of_arrays_is_a_data_set_of_its_kind(case):
    x, kind, holds = LABELLED[case]
    data = labelled_arrays("'mine'", x, [0, 2, 1, 0])
    assert (data.kind, data.classes, data.train_count, data.labels.tolist()) == (kind, 3, 4, [0, 2, 1, 0])
    assert holds(data)
    plan, groups = Partition(2, 1, test_examples=1), [Group("all", 1.0)]
    assert partition_dataset(data, plan, groups).kind == kind


@pytest.mark.parametrize(
    ("x", "y", "sentence"),
    [
        (pd.DataFrame({"a": ["x", "y"]}), [0, 1], "columns of numbers"),
        ([[0.5], [float("inf")]], [0, 1], r"in 1 of 2 examples\)"),
        ([[0.5], [0.7]], [0, -1], "labels of .*got -1"),
        ([[1, -1], [1, 2]], [0, 1], "words of .*got -1"),
        (torch.full((2, 1, 4, 4), 2.0), [0, 1], "images of .*2 to 2"),
        ([0.5, 0.7], [0, 1], r"shape \(\)\)"),
        (torch.rand(0, 3), [], "'mine' has no examples"),
    ],
)
def test_a_pair_that_makes_no_data_set_is_one_sentence(x, y, sentence):
    with pytest.raises(InputError, match=sentence):
        labelled_arrays("'mine'", x, torch.tensor(y, dtype=torch.int64))


def test_columns_of_a_set_are_standardised_by_the_training_rows():
    rows = torch.randn(60, 2, generator=torch.Generator().manual_seed(3)) * 5 + 7
    plan, groups = Partition(4, 10, shadow_examples=5, test_examples=10), [Group("all", 1.0)]
    federation = partition_dataset(TableDataset("rows", rows, torch.arange(60) % 2, 60, 2), plan, groups)
    assert federation.clients.x.mean(dim=0).tolist() == pytest.approx([0, 0], abs=1e-6)
    assert federation.clients.x.std(dim=0, correction=0).tolist() == pytest.approx([1, 1], abs=1e-6)
    assert federation.test.x.mean().abs() > 1e-4


# --- regression --------------------------------------------------------------------------------------------------

TARGETS = [(x, x.sum(dim=1)) for x, _ in CLIENTS]
REGRESSION = {
    "one number": lambda x, y: (x, y),
    "a column": lambda x, y: (x, y[:, None]),
    "float64": lambda x, y: (x, y.double()),
    "lists": lambda x, y: (x.tolist(), y.tolist()),
    "numpy": lambda x, y: (x.numpy(), y.numpy()),
    "a data set": TensorDataset,
    "a data set of rows": lambda x, y: TensorDataset(x, y[:, None]),
}


@pytest.mark.parametrize("form", REGRESSION.values(), ids=REGRESSION.keys())
def test_the_targets_of_a_regression_are_rows_in_any_form(form):
    given = [form(*each) for each in TARGETS]
    federation = Federation.from_tensors(given, test=given[0], shadow=given[1], holdout=given, task="regression")
    assert federation.classes is None
    expected = torch.cat([y for _, y in TARGETS])[:, None]
    for y, right in (
        (federation.clients.y, expected),
        (federation.holdout.y, expected),
        (federation.test.y, expected[:4]),
        (federation.shadow.y, expected[4:8]),
    ):
        assert y.dtype == torch.float32
        torch.testing.assert_close(y, right)
    assert "regression of 1 number;" in repr(federation)


def test_integers_are_targets_only_with_task_regression():
    x = CLIENTS[0][0]
    prices = torch.tensor([3.0, 1.0, 2.0, 0.0])
    assert Federation.from_tensors([(x, prices)], test=(x, prices)).classes == 4
    federation = Federation.from_tensors([(x, prices)], test=(x, prices), task="regression")
    assert federation.classes is None
    assert federation.clients.y.tolist() == [[3.0], [1.0], [2.0], [0.0]]


def test_rows_of_zeros_and_one_are_targets_not_one_hot_in_a_regression():
    x, _ = CLIENTS[0]
    rows = torch.eye(4)[:, :3] + torch.tensor([[0.0, 0, 0]] * 3 + [[1.0, 0, 0]])
    federation = Federation.from_tensors([(x, rows)], test=(x, rows), task="regression")
    assert torch.equal(federation.clients.y, rows)
    assert "regression of 3 numbers;" in repr(federation)


def test_a_table_may_have_a_column_of_targets():
    table = pd.DataFrame({"who": ["a", "a", "b"], "age": [30, 40, 50], "dose": [0.5, 1.0, 2.0]})
    columns = Columns(client="who", label="dose")
    federation = Federation.from_table(table, columns, test=table, shadow=table, task="regression")
    assert federation.clients.y.tolist() == federation.test.y.tolist() == federation.shadow.y.tolist()
    assert federation.clients.y.tolist() == [[0.5], [1.0], [2.0]]
    assert federation.clients.x.flatten().tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5])


def test_a_table_in_python_is_the_table_in_a_file(tmp_path, caplog):
    draw = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "who": [f"c{i % 3}" for i in range(30)], "state": draw.choice(["ill", "well"], 30),
            "age": draw.normal(size=30), "sex": draw.choice(["f", "m"], 30), "id": range(30),
            "dose": [*map(str, range(29)), "many"],
        }
    )  # fmt: skip
    table.loc[3, "age"] = np.nan
    columns = Columns("who", "state", one_hot=True, impute="median")
    table.to_csv(tmp_path / "t.csv", index=False)
    data = load_table(tmp_path / "t.csv", columns)
    made = Federation.from_table(table, columns, test=table)
    everyone = [torch.nonzero(data.client == i).flatten() for i in range(3)]
    none = torch.empty(0, dtype=torch.int64)
    owned = ClientIndices.concatenate(everyone), ClientIndices.equal(none, 3)
    parts = PartitionIndices(*owned, none, torch.arange(30))
    expected = federation_of_clients(data, parts, made.preferences)
    for theirs, ours in ((made.clients, expected.clients), (made.test, expected.test)):
        assert torch.equal(theirs.x, ours.x)
        assert torch.equal(theirs.y, ours.y)
    assert made.names == expected.names
    assert made.classes == expected.classes == 2
    said = [each.removeprefix(f"'{tmp_path / 't.csv'}'").removeprefix("the table") for each in data.warnings]
    assert [each.message.removeprefix("the table") for each in caplog.records] == said
    assert said == [
        ": the input 'dose' is left out: 1 of 30 cells is not a number, 'many' in row 30; correct these cells, or "
        "write every cell as a word",
        ": inputs that may be ids or codes: 'id' (a different integer in each row); 'inputs' can leave them out",
        ": impute = \"median\" fills empty cells in 'age' (1)",
    ]


CODES = {
    "zeros in front": ("01", "1", "2"),
    "20 digits": ("98765432109876543210", "98765432109876543211", "5"),
    "an E": ("100", "1E2", "2E-1"),
}


@pytest.mark.parametrize("given", [None, 3])
@pytest.mark.parametrize("codes", CODES.values(), ids=CODES)
def test_labels_that_are_codes_are_classes_by_their_spelling(codes, given, tmp_path):
    table = pd.DataFrame({"who": ["a", "b"] * 3, "x": np.arange(6.0), "code": codes * 2})
    columns = Columns(client="who", label="code")
    federation = Federation.from_table(table, columns, test=table, classes=given)
    assert (federation.classes, len(federation.clients.y.unique())) == (3, 3)
    table.to_csv(tmp_path / "t.csv", index=False)
    assert {*load_table(tmp_path / "t.csv", columns).class_names} == {*codes}


@pytest.mark.parametrize(("label", "classes"), [("01", 2), ("dog", 2), ("2", None)])
def test_a_label_of_the_test_table_that_no_client_has_is_refused(label, classes):
    table = pd.DataFrame({"who": ["a", "b"], "x": [0.0, 1.0], "label": ["1", "0"]})
    with pytest.raises(InputError, match=f"label '{label}'"):
        Federation.from_table(table, Columns("who", "label"), test=table.assign(label=label), classes=classes)


def test_whole_floats_are_integers_as_classes_and_clients():
    table = pd.DataFrame({"who": [1e20, 2e20, 1e20], "x": [0.0, 1.0, 2.0], "label": [2.0, 10.0, 2.0]})
    federation = Federation.from_table(table, Columns("who", "label"), test=table.assign(label=["2", " 10", "2.0"]))
    assert federation.names == (str(10**20), str(2 * 10**20))
    assert federation.test.y.tolist() == [0, 1, 0]


def test_names_of_columns_may_be_numbers_which_are_read_as_text():
    draw = np.random.default_rng(0)
    table = pd.DataFrame(draw.normal(size=(6, 2))).assign(who=["a", "b"] * 3, label=[0, 0, 1] * 2)
    columns = Columns(client="who", label="label", inputs=("1", "0"))
    named = Federation.from_table(table.rename(columns=str), columns, test=table.rename(columns=str))
    assert torch.equal(Federation.from_table(table, columns, test=table).clients.x, named.clients.x)


@pytest.mark.parametrize(
    ("titles", "words"),
    [
        ([0, "0"], r"'0' twice\)"),
        ([float("nan"), "x"], r"column 1 \(got nan\)"),
    ],
)
def test_columns_without_a_name_of_their_own_are_refused(titles, words):
    table = pd.DataFrame([[0.5, 0.6, "a", 0], [0.7, 0.8, "b", 1]], columns=[*titles, "who", "label"])
    with pytest.raises(InputError, match=words):
        Federation.from_table(table, Columns("who", "label"), test=table)


def test_integers_of_a_table_are_classes_where_classes_are_given():
    table = pd.DataFrame({"who": ["a", "a", "b"], "age": [30, 40, 50], "label": [3, 7, 3]})
    columns = Columns("who", "label")
    assert Federation.from_table(table, columns, test=table).clients.y.tolist() == [0, 1, 0]
    given = Federation.from_table(table, columns, test=table.assign(label=5), classes=8)
    assert (given.clients.y.tolist(), given.test.y.tolist()) == ([3, 7, 3], [5, 5, 5])


def test_a_fraction_holds_out_the_rows_that_a_configuration_holds_out(tmp_path):
    table = pd.DataFrame({"who": [*"ab"] * 20, "ill": [0, 1, 1, 0] * 10, "age": map(float, range(40))})
    made = Federation.from_table(table, Columns("who", "ill"), test_fraction=0.3, seed=5)
    table.to_csv(tmp_path / "t.csv", index=False)
    data = {"source": "table", "path": str(tmp_path / "t.csv"), "client": "who", "label": "ill", "test_fraction": 0.3}
    tables = {"model": {"name": "logistic"}, "algorithm": {"name": "fedavg", "rounds": 1}}
    red_team = {"every": 0, "attack": "gap"}
    config = parse_config({"data": data, "seed": 5, "red_team": red_team} | tables, "test")
    expected = build(config)[1].federation
    for part in ("clients", "test"):
        theirs, ours = getattr(made, part), getattr(expected, part)
        assert torch.equal(theirs.x.sort(dim=0).values, ours.x.sort(dim=0).values)
        assert len(theirs.y) == len(ours.y)
    assert made.test.client is not None
    assert "'test' and 'test_fraction'" in refused(lambda: Federation.from_table(table, Columns("who", "ill")))
    assert "'test_fraction'" in refused(lambda: Federation.from_table(table, Columns("who", "ill"), test_fraction=1.0))
