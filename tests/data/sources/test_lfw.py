import builtins

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import fetch_lfw_people

from refused_input import refused
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import load_dataset
from shoal.data.sources.catalog import availability
from shoal.data.sources.tasks import find_lfw, load_lfw

COLUMNS = ["Male", "Asian", "White", "Black", "Smiling", "Eyeglasses", "Sunglasses", "No Eyewear", "Bald"]
COMMENT = "# Scores of attributes, one row a face, tab separated.\n"
# Person, number of the image, and scores in the order of COLUMNS.
ROWS = [
    ("Zoe Ray", 2, [-1.2, 0.4, 0.9, -0.3, 1.5, -1.0, 0.7, 0.2, 0]),
    ("Abel Moss", 1, [0.8, -0.2, -0.4, 1.1, -0.5, 0.3, -0.8, 0.1, 0]),
    ("Zoe Ray", 1, [-0.1, 1.4, 0.9, -0.3, 0.2, -1.0, -0.7, 0.6, 0]),
    ("Li Van Der Berg", 1, [0.0, -0.5, -0.2, -0.11, 0.0, -0.2, 0.9, 0.3, 0]),  # no race
    ("Abel Moss", 11, [2.0, -0.1, -0.2, -0.3, 0.1, -0.3, -0.2, -0.4, 0]),  # race just clear, no eyewear
]


def path_of(folder, person, number):
    name = person.replace(" ", "_")
    return folder / name / f"{name}_{number:04d}.jpg"


def write_attributes(folder, rows=tuple(ROWS), columns=tuple(COLUMNS), official=True):
    header = "\t".join(["person", "imagenum", *columns])
    lines = [f"{person}\t{number}\t" + "\t".join(map(str, scores)) for person, number, scores in rows]
    start = f"{COMMENT}#\t" if official else ""
    (folder / "lfw_attributes.txt").write_text(start + "\n".join([header, *lines]) + "\n")


def write_images(folder, rows=tuple(ROWS)):
    """Blurred noise, so that a JPEG keeps its shades."""
    for at, (person, number, _) in enumerate(rows):
        path = path_of(folder, person, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        coarse = Stream(0)("picture", at).numpy().integers(0, 256, (25, 25, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((250, 250)).save(path, quality=90)


@pytest.fixture
def lfw(tmp_path):
    """A small LFW in the official layout, inside scikit-learn's."""
    folder = tmp_path / "lfw_home"
    folder.mkdir()
    write_attributes(folder)
    write_images(folder / "lfw_funneled")
    for name in ("pairsDevTrain.txt", "pairsDevTest.txt", "pairs.txt"):
        (folder / name).touch()  # scikit-learn wants them to exist
    return folder


def error_of(path, task="smiling/sunglasses"):
    return refused(load_lfw, path, task)


def test_the_images_are_scikit_learns(lfw, tmp_path):
    ours = load_lfw(lfw, "gender")
    reference = fetch_lfw_people(data_home=tmp_path, color=True, resize=0.5, download_if_missing=False)
    order = np.random.RandomState(42).permutation(5)  # as theirs does
    by_path = sorted(range(5), key=lambda i: (ROWS[i][0], ROWS[i][1]))
    rows = [by_path[i] for i in order]
    assert [reference.target_names[k] for k in reference.target] == [ROWS[i][0] for i in rows]
    expected = np.rint(reference.images * 255).astype(np.uint8).transpose(0, 3, 1, 2)
    assert ours.pixels.shape == (5, 3, 62, 47)
    assert ours.pixels.dtype == torch.uint8
    assert torch.equal(ours.pixels[rows], torch.from_numpy(expected))
    assert len(torch.unique(ours.pixels.flatten(1), dim=0)) == 5
    assert (ours.name, ours.white, ours.train_count, ours.classes, ours.has_property) == ("lfw", 255, 5, 2, None)


@pytest.mark.parametrize(
    ("task", "rows", "labels", "has_property", "classes"),
    [
        ("smiling", [0, 1, 2, 3, 4], [1, 0, 1, 0, 1], None, 2),
        ("gender", [0, 1, 2, 3, 4], [0, 1, 0, 0, 1], None, 2),
        ("race", [0, 1, 2, 4], [1, 2, 0, 0], None, 3),
        # The last face has no sure score of eyewear, the fourth none of race.
        ("smiling/sunglasses", [0, 1, 2, 3], [1, 0, 1, 0], [True, False, False, True], 2),
        ("race/sunglasses", [0, 1, 2], [1, 2, 0], [True, False, False], 3),
        ("gender/black", [0, 1, 2, 4], [0, 1, 0, 1], [False, True, False, False], 2),
        ("gender/eyeglasses", [0, 1, 2, 3], [0, 1, 0, 0], [False, True, False, False], 2),
        ("race/smiling", [0, 1, 2, 4], [1, 2, 0, 0], [True, False, True, True], 3),
        ("smiling/male", [0, 1, 2, 3, 4], [1, 0, 1, 0, 1], [False, True, False, False, True], 2),
    ],
)
def test_labels_are_made_as_the_paper_makes_them(lfw, task, rows, labels, has_property, classes):
    result = load_lfw(lfw, task)
    assert result.labels.tolist() == labels
    assert (None if result.has_property is None else result.has_property.tolist()) == has_property
    assert (result.classes, result.train_count) == (classes, len(labels))
    assert torch.equal(result.pixels, load_lfw(lfw, "gender").pixels[rows])


@pytest.mark.parametrize("name", ["lfw", "lfw-deepfunneled"])
def test_lfw_in_other_folders_and_without_comment(lfw, name):
    expected = load_lfw(lfw, "race/sunglasses")
    (lfw / "lfw_funneled").rename(lfw / name)
    write_attributes(lfw, official=False)
    result = load_lfw(lfw, "race/sunglasses")
    assert torch.equal(result.pixels, expected.pixels)
    assert torch.equal(result.labels, expected.labels)
    assert find_lfw(lfw) == lfw


def test_folders_in_which_lfw_is_looked_for(lfw, tmp_path):
    assert find_lfw(tmp_path) is None
    assert len(load_dataset("lfw", data_dir=lfw, task="smiling").labels) == 5
    assert len(load_dataset("lfw", path=lfw, task="smiling").labels) == 5
    lfw.rename(tmp_path / "lfw")
    assert len(load_dataset("lfw", data_dir=tmp_path, task="smiling").labels) == 5
    (tmp_path / "lfw" / "lfw_attributes.txt").unlink()
    with pytest.raises(InputError, match=r"lfw-funneled\.tgz.*lfw_attributes\.txt"):
        load_dataset("lfw", data_dir=tmp_path, task="smiling")


def test_the_order_of_columns_and_of_rows_is_the_files(lfw):
    expected = load_lfw(lfw, "gender/black")
    reversed_rows = [(person, number, scores[::-1]) for person, number, scores in ROWS[::-1]]
    write_attributes(lfw, reversed_rows, COLUMNS[::-1])
    result = load_lfw(lfw, "gender/black")
    assert torch.equal(result.pixels, expected.pixels.flip(0))
    assert torch.equal(result.labels, expected.labels.flip(0))


def test_a_missing_file_or_folder_is_one_sentence(lfw, tmp_path):
    (lfw / "lfw_attributes.txt").rename(tmp_path / "kept")
    assert "lfw_attributes.txt' is missing" in error_of(lfw)
    (tmp_path / "kept").rename(lfw / "lfw_attributes.txt")
    (lfw / "lfw_funneled").rename(tmp_path / "elsewhere")
    assert "folder of images, named one of 'lfw_funneled', 'lfw', 'lfw-deepfunneled'" in error_of(lfw)
    assert "'lfw-deepfunneled'" in error_of(lfw)


def test_missing_columns_are_named(lfw):
    write_attributes(lfw, [(p, n, s[2:]) for p, n, s in ROWS], [*COLUMNS[2:-3], "Sunnyglasses", "No Eyewear", "Bald"])
    sentence = error_of(lfw, "race/sunglasses")
    assert "lacks the columns 'Asian', 'Sunglasses'" in sentence
    assert "lfw_attributes.txt" in sentence
    assert load_lfw(lfw, "smiling").labels.tolist() == [1, 0, 1, 0, 1]


def test_missing_images_are_counted_and_the_first_is_named(lfw):
    for person, number, _ in (ROWS[1], ROWS[2]):
        path_of(lfw / "lfw_funneled", person, number).unlink()
    sentence = error_of(lfw)
    assert "2 of 4 images named by" in sentence
    assert "Abel_Moss_0001.jpg" in sentence


def spoil(path, how):
    content = path.read_bytes()
    if how == "empty":
        path.write_bytes(b"")
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif how == "another size":
        Image.new("RGB", (64, 64)).save(path)
    else:
        Image.new("RGB", (250, 250)).save(path, format="PNG")


@pytest.mark.parametrize(
    ("how", "phrases"),
    [
        ("empty", "cannot be read as a picture"),
        ("cut", "cannot be read as a picture"),
        ("png", "cannot be read as a picture"),
        ("another size", "64x64 pixels; LFW's images have 250x250"),
    ],
)
def test_a_damaged_image_is_one_sentence(lfw, how, phrases):
    spoil(path_of(lfw / "lfw_funneled", *ROWS[2][:2]), how)
    sentence = error_of(lfw)
    assert phrases in sentence
    assert "Zoe_Ray_0001.jpg" in sentence


@pytest.mark.parametrize(
    ("line", "phrases"),
    [
        ("Zoe Ray\t2\t1\t2\t3\t4\t5\t6\tmany\t8\t9", ["line 3", "many"]),
        ("Zoe Ray\t2\t1\t2\t3\t4\t5\t6\tnan\t8\t9", ["line 3", "finite"]),
        ("Zoe Ray\t2\t1\t2\t3", ["line 3", "5", "11"]),
        ("Zoe Ray\ttwo\t1\t2\t3\t4\t5\t6\t7\t8\t9", ["line 3", "'two'"]),
        ("Zoe Ray", ["line 3", "1", "11"]),
        ("../Zoe Ray\t2\t1\t2\t3\t4\t5\t6\t7\t8\t9", ["line 3", "'../Zoe Ray'"]),
    ],
)
def test_a_damaged_row_is_one_sentence(lfw, line, phrases):
    header = "\t".join(["person", "imagenum", *COLUMNS])
    (lfw / "lfw_attributes.txt").write_text(f"{COMMENT}#\t{header}\n{line}\n")
    sentence = error_of(lfw)
    assert all(word in sentence for word in phrases), sentence


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00binary", b"# only a comment\n", b"<html>\n"])
def test_a_file_that_is_no_table_is_one_sentence(lfw, content):
    (lfw / "lfw_attributes.txt").write_bytes(content)
    assert "lfw_attributes.txt" in error_of(lfw)


def test_a_table_without_rows_or_without_clear_ones_is_one_sentence(lfw):
    write_attributes(lfw, [])
    assert "row" in error_of(lfw)
    write_attributes(lfw, [ROWS[3]])
    assert "'race'" in error_of(lfw, "race")


@pytest.mark.parametrize(
    ("task", "phrases"),
    [
        (None, ["'task'", "'smiling/sunglasses'", "'race'", "'gender'"]),
        ("smiling/sunglass", ["did you mean 'sunglasses'?"]),
        ("gender/male", ["'gender/male'"]),
        ("race/black", ["'race/black'"]),
        ("age", ["'age'"]),
    ],
)
def test_a_task_that_lfw_lacks_is_one_sentence(lfw, task, phrases):
    sentence = error_of(lfw, task)
    assert all(word in sentence for word in phrases), sentence


def test_without_pillow_the_sentence_says_what_to_install(lfw, monkeypatch):
    load = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("PIL"):
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    assert "pip install 'shoal[images]'" in error_of(lfw)


def test_the_images_that_are_there_are_counted(lfw):
    def size():
        return {row.name: row for row in availability(lfw)}["lfw"].size

    assert size() == "5 of 62x47"
    path = path_of(lfw / "lfw_funneled", "Zoe Ray", 2)
    path.unlink()
    assert size().startswith("damaged: 1 of 5")
    write_attributes(lfw, rows=[("Zoe Ray", "two", [0.0] * 9)])
    assert size().startswith("damaged: ")
