"""Tables with a client column: which columns are read as what, and what is refused."""

import sys

import pandas as pd
import pytest

from refused_input import refused
from shoal.data import Columns, load_table

CSV = """who,area,ill,age,bmi,city
NA,north,no,50,20.5,Rome
NA,north,yes,51,21.5,Oslo
b,south,no,52,22.5,Rome
b,south,yes,53,23.5,Rome
"""
COLUMNS = Columns(client="who", label="ill", group="area")


def table(tmp_path, text=CSV, columns=COLUMNS, name="t.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return load_table(path, columns)


def test_all_columns_of_numbers_are_inputs_and_words_are_numbered(tmp_path):
    data = table(tmp_path)
    assert data.x.tolist() == [[50, 20.5], [51, 21.5], [52, 22.5], [53, 23.5]]
    assert data.inputs == ("age", "bmi")
    # "NA" is a name where names stand.
    assert (data.client_names, data.group_names, data.class_names) == (("NA", "b"), ("north", "south"), ("no", "yes"))
    assert (data.client.tolist(), data.group.tolist(), data.labels.tolist()) == ([0, 0, 1, 1], [0, 1], [0, 1, 0, 1])
    (said,) = data.warnings
    assert said.endswith(
        "left out as inputs, since they hold no numbers: 'city'; 'one_hot' makes columns of words inputs"
    )


def test_inputs_are_taken_as_named_in_their_order(tmp_path):
    data = table(tmp_path, columns=Columns(client="who", label="ill", inputs=["bmi"]))
    assert (data.x.tolist(), data.inputs, data.group_names) == (
        [[20.5], [21.5], [22.5], [23.5]],
        ("bmi",),
        ("all",),
    )
    both = table(tmp_path, columns=Columns(client="who", label="ill", inputs=["bmi", "age"]))
    assert both.x[0].tolist() == [20.5, 50]


def test_inputs_are_numbers_also_where_cells_are_words_or_empty(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("who,ill,size,colour\na,no,1,red\na,yes,,blue\nb,no,3,\nb,yes,4,red\n")
    columns = Columns(client="who", label="ill", inputs=["size", "colour"], one_hot=True, impute="mean")
    data = load_table(path, columns)
    assert data.x.nan_to_num(-7).tolist() == [[1, 1], [-7, 0], [3, -7], [4, 1]]


@pytest.mark.parametrize(("labels", "names"), [(("10", "9"), ("9", "10")), (("1.0", "0"), ("0", "1"))])
def test_integer_labels_are_numbered_by_size(tmp_path, labels, names):
    data = table(tmp_path, CSV.replace("no", labels[0]).replace("yes", labels[1]), Columns(client="who", label="ill"))
    assert data.class_names == names
    assert data.labels.tolist() == [1, 0, 1, 0]


def test_parquet_is_the_same_table(tmp_path):
    pytest.importorskip("pyarrow")
    frame = pd.read_csv(pd.io.common.StringIO(CSV), keep_default_na=False)
    frame.to_parquet(tmp_path / "t.parquet")
    data, expected = load_table(tmp_path / "t.parquet", COLUMNS), table(tmp_path)
    assert data.examples.equals(expected.examples)
    for name in ("class_names", "client_names", "group_names", "inputs"):
        assert getattr(data, name) == getattr(expected, name)
    frame.assign(who=[1.0, 1.0, 2.0, 2.0], ill=[True, False, True, False]).to_parquet(tmp_path / "n.parquet")
    numbers = load_table(tmp_path / "n.parquet", COLUMNS)
    assert (numbers.client_names, numbers.class_names) == (("1", "2"), ("False", "True"))


@pytest.mark.parametrize(
    ("change", "columns", "words"),
    [
        (("who,", "how,"), COLUMNS, "has no column 'who'; known: age"),
        (("bmi", "x"), Columns("who", "ill", inputs=("bmi",)), "has no column 'bmi'; known: age"),
        (("20.5", ""), COLUMNS, "has 1 empty, NaN or infinite cell in 'bmi' (1), the first in row 1 ("),
        (("51,21.5", "NA,inf"), COLUMNS, "has 2 empty, NaN or infinite cells in 'age' (1), 'bmi' (1), the first"),
        (("b,south,no", ",south,no"), COLUMNS, "has 1 of 4 rows without a value in the column 'who', the first in"),
        (("b,south,no", "b,south,NA"), COLUMNS, "without a value in the column 'ill', the first in row 3 (without"),
        (("b,south,no", "b,,no"), COLUMNS, "without a value in the column 'area', the first in row 3"),
        (("b,south,yes", "b,north,yes"), COLUMNS, "has the client 'b' in several groups: 'north', 'south'"),
        (("", ""), Columns("who", "bmi"), "numbers that are not integers in the column 'bmi', such as [20.5]"),
        (("", ""), Columns("who", "ill", inputs=("city",)), "has not only numbers in the column 'city'; choose"),
        (("", ""), Columns("who", "ill", inputs=()), "'inputs' must name at least one column"),
        (("age,bmi", "age,age"), COLUMNS, "has two columns 'age'; give one another name"),
        (("Rome\nb", "Rome,more\nb"), COLUMNS, "is not a CSV file with a header, by commas and in UTF-8"),
    ],
)
def test_tables_that_cannot_be_used_are_one_sentence(tmp_path, change, columns, words):
    found = refused(table, tmp_path, CSV.replace(*change, 1), columns)
    assert words in found
    assert found.startswith("'inputs'") or str(tmp_path / "t.csv") in found


def test_a_table_without_rows_columns_or_numbers_is_one_sentence(tmp_path):
    assert "has no rows" in refused(table, tmp_path, "who,ill,age,area\n")
    assert "is not a CSV file" in refused(table, tmp_path, "")
    assert "has no column of numbers besides 'who', 'ill'" in refused(
        table, tmp_path, "who,ill,city\na,0,Rome\n", Columns("who", "ill")
    )


def test_a_damaged_parquet_file_and_a_missing_pyarrow_are_one_sentence(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    assert "cannot be read as a Parquet file" in refused(table, tmp_path, "PAR", name="t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'shoal[parquet]'" in refused(table, tmp_path, "PAR", name="t.parquet")
