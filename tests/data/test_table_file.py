"""Files of clients: tables with a client column and pictures in folders, what is read as what, and what is refused."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from refused_input import refused
from shoal.data import Columns, PictureFormat, load_folder, load_table
from shoal.data.content import fingerprint

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
    data = table(tmp_path, columns=replace(COLUMNS, one_hot=False))
    assert data.x.tolist() == [[50, 20.5], [51, 21.5], [52, 22.5], [53, 23.5]]
    assert data.inputs == ("age", "bmi")
    # "NA" is a name where names stand.
    assert (data.client_names, data.group_names, data.class_names) == (("NA", "b"), ("north", "south"), ("no", "yes"))
    assert (data.client.tolist(), data.group.tolist(), data.labels.tolist()) == ([0, 0, 1, 1], [0, 1], [0, 1, 0, 1])
    (said,) = data.warnings
    assert said.endswith(
        "columns left out as inputs, since they hold no numbers: 'city'; 'one_hot' makes columns of words inputs"
    )


def test_columns_of_2_to_20_words_are_inputs_unless_inputs_names_others(tmp_path):
    data = table(tmp_path)
    assert (data.inputs, data.warnings) == (("age", "bmi", "city"), ())
    names = "\n".join(f"c,north,no,50,20.5,town {i}" for i in range(30))
    (said,) = table(tmp_path, CSV + names).warnings
    assert "columns left out as inputs" in said
    assert "'city' (32)" in said
    named = replace(COLUMNS, inputs=("city",))
    assert table(tmp_path, CSV + names, named).inputs == ("city",)


@pytest.mark.parametrize("separator", [";", "\t"])
def test_semicolons_and_tabs_are_recognised_and_said(tmp_path, separator):
    data, expected = table(tmp_path, CSV.replace(",", separator)), table(tmp_path)
    assert data.examples.equals(expected.examples)
    assert ("semicolons" if separator == ";" else "tabs") in data.warnings[0]
    german = table(tmp_path, CSV.replace(",", ";").replace(".", ","))
    assert german.examples.equals(expected.examples)


def test_rows_are_those_with_the_values_that_are_asked_for(tmp_path):
    data = table(tmp_path, columns=replace(COLUMNS, rows=("city", "Rome")))
    assert data.examples["age"].tolist() == [50, 52, 53]
    assert [data.origin(i) for i in range(3)] == ["t.csv row 2", "t.csv row 4", "t.csv row 5"]


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
    assert "impute = \"mean\" fills empty cells in 'size' (1) and 'colour' (1)" in data.warnings[-1]
    # Neither where rows lie nor what a user is told changes a model, so sweeps find the runs of another process.
    assert fingerprint(replace(data, origin=hex, warnings=())) == fingerprint(data)
    with pytest.raises(TypeError):
        fingerprint((hex,))


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
        (("20.5", ""), COLUMNS, "'bmi' (1) (first in row 1, without the header)"),
        (("51,21.5", "NA,NA"), COLUMNS, "'age' (1), 'bmi' (1) (first in row 2, without the header)"),
        (
            ("51,21.5", "NA,inf"),
            COLUMNS,
            "'bmi' (1) (first in row 2, without the header)",
        ),
        (("51,21.5", "51,2e200"), COLUMNS, "'bmi' (1) (first in row 2, without the header)"),
        (("b,south,no", ",south,no"), COLUMNS, "'who': 1 of 4 cells are empty (first in row 3, without the header)"),
        (("b,south,no", "b,south,NA"), COLUMNS, "'ill': 1 of 4 cells are empty (first in row 3, without the header)"),
        (("b,south,no", "b,,no"), COLUMNS, "'area': 1 of 4 cells are empty (first in row 3, without the header)"),
        (("", ""), Columns("who", "bmi"), "'bmi': labels must be names or integers (got [20.5])"),
        (
            ("", ""),
            Columns("who", "ill", inputs=("city",), one_hot=False),
            "'city': cells must be numbers",
        ),
        (("", ""), Columns("who", "ill", inputs=()), "'inputs' must name at least one column"),
        (("age,bmi", "age,age"), COLUMNS, "'age' twice)"),
        (("Rome\nb", "Rome,more\nb"), COLUMNS, "line 4: the row must have at most 6 cells, like the header (got 7)"),
    ],
)
def test_tables_that_cannot_be_used_are_one_sentence(tmp_path, change, columns, words):
    found = refused(table, tmp_path, CSV.replace(*change, 1), columns)
    assert words in found
    assert found.startswith("'inputs'") or str(tmp_path / "t.csv") in found


def test_a_table_without_rows_columns_or_numbers_is_one_sentence(tmp_path):
    assert "has no rows" in refused(table, tmp_path, "who,ill,age,area\n")
    assert "CSV" in refused(table, tmp_path, "")
    assert "'who', 'ill'" in refused(table, tmp_path, "who,ill,city\na,0,Rome\n", Columns("who", "ill"))


def test_a_damaged_parquet_file_and_a_missing_pyarrow_are_one_sentence(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    assert "cannot be read as a Parquet file" in refused(table, tmp_path, "PAR", name="t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install 'shoal[parquet]'" in refused(table, tmp_path, "PAR", name="t.parquet")


Image = pytest.importorskip("PIL.Image")


def write(path, value, shape=(4, 6), dtype=np.uint8):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full(shape, value, dtype)).save(path)
    return path


def pictures(folder):
    """Two clients with two classes: the brightness of a picture says its place."""
    for c, client in enumerate(("ann", "bob")):
        for k, label in enumerate(("cat", "dog")):
            for i in range(2):
                write(folder / client / label / f"{i}.png", 100 * c + 10 * k + i)
    return folder


def cut(path):
    path.write_bytes(path.read_bytes()[:45])


def test_a_folder_says_client_and_class(tmp_path):
    folder = pictures(tmp_path)
    (folder / ".DS_Store").touch()
    (folder / "ann" / "cat" / ".hidden").touch()
    (folder / "README.txt").touch()
    data = load_folder(folder, PictureFormat())
    assert data.x.shape == (8, 1, 4, 6)
    assert data.x[:, 0, 0, 0].tolist() == [0, 1, 10, 11, 100, 101, 110, 111]
    assert (data.client.tolist(), data.labels.tolist()) == ([0] * 4 + [1] * 4, [0, 0, 1, 1] * 2)
    assert (data.client_names, data.class_names, data.group_names) == (("ann", "bob"), ("cat", "dog"), ("all",))
    assert "inputs: pictures of 4x6, grey" in list(data.description())


def test_the_order_in_which_a_system_lists_files_changes_nothing(tmp_path, monkeypatch):
    expected = load_folder(pictures(tmp_path), PictureFormat())
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(sorted(listed(self), reverse=True)))
    data = load_folder(tmp_path, PictureFormat())
    assert data.x.equal(expected.x)
    assert data.client.equal(expected.client)


def test_a_csv_file_says_client_group_and_class(tmp_path):
    for name, value in (("a", 1), ("b", 2), ("c", 3)):
        write(tmp_path / "all" / f"{name}.png", value)
    index = tmp_path / "index.csv"
    index.write_text("path,class,client,group\nall/c.png,x,NA,south\nall/a.png,y,b,north\nall/b.png,x,NA,south\n")
    data = load_folder(index, PictureFormat())
    assert data.x[:, 0, 0, 0].tolist() == [3, 1, 2]
    assert (data.client_names, data.client.tolist()) == (("NA", "b"), [0, 1, 0])
    assert (data.group_names, data.group.tolist(), data.labels.tolist()) == (("north", "south"), [1, 0], [0, 1, 0])


def test_every_picture_becomes_one_size_and_form(tmp_path):
    write(tmp_path / "a" / "x" / "0.png", 50, (8, 4))
    write(tmp_path / "a" / "y" / "0.png", 60, (3, 3, 3))
    data = load_folder(tmp_path, PictureFormat(size=[2, 5]))
    assert data.x.shape == (2, 3, 2, 5)
    assert data.x.flatten(1).unique(dim=1).tolist() == [[50], [60]]
    assert load_folder(tmp_path, PictureFormat([2, 5], channels=1)).x.shape == (2, 1, 2, 5)


def test_a_picture_is_turned_upright_as_its_camera_says(tmp_path):
    write(tmp_path / "a" / "x" / "0.png", 50, (6, 4))
    turned = tmp_path / "a" / "y" / "0.jpg"
    turned.parent.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(np.full((4, 6), 9, np.uint8)).save(turned, exif=exif)
    assert load_folder(tmp_path, PictureFormat()).x.shape == (2, 1, 6, 4)


def test_pictures_of_different_sizes_need_a_size(tmp_path):
    write(pictures(tmp_path) / "bob" / "dog" / "9.png", 0, (5, 5))
    found = refused(load_folder, tmp_path, PictureFormat())
    assert "different_siz" in found
    assert "5x5" in found
    assert "set 'size' = [height, width]" in found


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda p: write(p / "0.png", 1), "0.png"),
        (lambda p: write(p / "ann" / "0.png", 1), "0.png"),
        (lambda p: (p / "ann" / "cat" / "notes.txt").touch(), "notes.txt"),
        (lambda p: (p / "ann" / "cat" / "more").mkdir(), "more' is not a picture"),
        (lambda p: (p / "ann" / "cat" / "2.png").write_bytes(b"GIF"), "2.png' cannot be read as a picture"),
        (lambda p: cut(p / "ann" / "cat" / "1.png"), "1.png' cannot be read as a picture"),
        (
            lambda p: write(p / "ann" / "cat" / "2.png", 1, dtype=np.uint16),
            "cannot be read as a picture (more than 8 bits",
        ),
    ],
)
def test_pictures_that_cannot_be_used_are_named(tmp_path, spoil, words):
    spoil(pictures(tmp_path))
    assert words in refused(load_folder, tmp_path, PictureFormat())


def test_an_empty_folder_is_one_sentence(tmp_path):
    assert "test_an_empty_folder_is_one_se0" in refused(load_folder, tmp_path, PictureFormat())
    (tmp_path / "ann" / "cat").mkdir(parents=True)
    assert "has no pictures" in refused(load_folder, tmp_path, PictureFormat())


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("client,class,path\n", "has no pictures"),
        ("client,class\na,b\n", "has no column 'path'"),
        ("client,class,path\na,x,0.png\n,y,1.png\n", "'client': 1 of 2 cells are empty (first in row 2, without the"),
        ("client,class,path\na,x,0.png\nb,y,./0.png\n", "'./0.png' in rows 1 and 2)"),
        ("client,class,path\na,x,0.png\na,y,1.png\n", "1.png' cannot be read as a picture (No such file"),
    ],
)
def test_lists_of_pictures_that_cannot_be_used_are_one_sentence(tmp_path, rows, words):
    write(tmp_path / "0.png", 1)
    (tmp_path / "list.csv").write_text(rows)
    assert words in refused(load_folder, tmp_path / "list.csv", PictureFormat())


def test_without_pillow_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    pictures(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "pip install 'shoal[images]'" in refused(load_folder, tmp_path, PictureFormat())
