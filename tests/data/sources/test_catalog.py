"""Sources of images: where each is looked for, the official IDX files byte for byte, and all damage in one sentence."""

import gzip
import struct
from pathlib import Path

import numpy as np
import platformdirs
import pytest
import torch
from sklearn.datasets import load_digits

from refused_input import refused
from shoal.core.errors import InputError
from shoal.data.sources.catalog import availability, load_dataset
from shoal.data.sources.idx import load_idx_folder, read_idx
from shoal.data.sources.named_tables import NAMED_TABLES

PLAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
EMNIST = tuple("emnist-byclass-" + name.replace("t10k", "test") for name in PLAIN)
DEBIAN = Path("/usr/share/datasets/fashion-mnist")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A user without data sets."""
    monkeypatch.delenv("SHOAL_DATA", raising=False)
    folder = tmp_path / "user-cache"
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: folder / name)
    return folder / "shoal"


def write_idx(folder, value, names=PLAIN):
    """A set of one image per split, of brightness ``value``."""
    folder.mkdir(parents=True, exist_ok=True)
    image, label = np.full((1, 2, 2), value, np.uint8), np.zeros(1, np.uint8)
    for name, values in zip(names, (image, label, image, label), strict=True):
        (folder / name).write_bytes(idx_bytes(values))
    return folder


def brightness(*args, **kwargs):
    return int(load_dataset(*args, **kwargs).pixels[0, 0, 0, 0])


def test_real_fashion_mnist_from_debians_package():
    images = load_dataset("fashion-mnist")
    assert images.pixels.shape == (70000, 1, 28, 28)
    assert (images.name, images.white, images.train_count, images.classes) == ("fashion-mnist", 255, 60000, 10)
    assert images.labels[:60000].bincount().tolist() == [6000] * 10
    assert images.labels[60000:].bincount().tolist() == [1000] * 10
    assert images.labels[:5].tolist() == [9, 0, 0, 3, 0]
    assert images.labels[60000:60005].tolist() == [9, 2, 1, 1, 6]
    # The published mean brightness of the training split, 0.2860 of white.
    assert float(images.pixels[:60000].double().mean()) / 255 == pytest.approx(0.2860, abs=5e-5)
    # The first image, an ankle boot, lies low and right: its top rows are empty, its sole is not.
    assert int(images.pixels[0, 0, :3].max()) == 0
    assert int(images.pixels[0, 0, 24].max()) > 0
    assert int(images.pixels.max()) == 255


def test_the_digits_are_scikit_learns():
    digits, original = load_dataset("digits"), load_digits()
    assert digits.pixels.dtype == torch.uint8
    assert torch.equal(digits.pixels[:, 0].double(), torch.from_numpy(original.images))
    assert torch.equal(digits.labels, torch.from_numpy(original.target).long())
    assert int(digits.pixels.max()) == digits.white == 16
    assert (digits.name, digits.train_count, digits.classes) == ("digits", 1797, 10)


def test_a_source_that_a_package_ships_takes_no_path():
    assert "'digits'" in refused(load_dataset, "digits", path=Path("/some"))


def test_a_task_adds_a_property_to_grey_images_wherever_they_come_from(tmp_path):
    write_idx(tmp_path / "mnist", 1)
    write_idx(tmp_path / "emnist-byclass", 1, EMNIST)
    for name, path in (("mnist", None), ("emnist-byclass", None), ("idx", tmp_path / "mnist")):
        images = load_dataset(name, data_dir=tmp_path, path=path, task="class/thick")
        assert images.has_property is not None
        assert images.has_property.tolist() == [False, False]
        assert load_dataset(name, data_dir=tmp_path, path=path).has_property is None
        assert "did you mean 'thick'?" in refused(load_dataset, name, data_dir=tmp_path, path=path, task="class/thik")


def test_order_of_the_folders_in_which_a_source_is_looked_for(tmp_path, monkeypatch, cache):
    data, other = tmp_path / "data", tmp_path / "other"
    write_idx(cache / "mnist", 1)
    assert brightness("mnist") == 1
    assert brightness("mnist", data_dir=data) == 1
    write_idx(data, 2)
    assert brightness("mnist") == 1
    assert brightness("mnist", data_dir=data) == 2
    write_idx(data / "MNIST" / "raw", 3)
    assert brightness("mnist", data_dir=data) == 3
    write_idx(data / "mnist", 4)
    assert brightness("mnist", data_dir=data) == 4
    monkeypatch.setenv("SHOAL_DATA", str(data))
    assert brightness("mnist") == 4
    write_idx(other / "mnist", 5)
    assert brightness("mnist", data_dir=other) == 5
    write_idx(tmp_path / "mine", 6)
    assert brightness("mnist", path=tmp_path / "mine", data_dir=other) == 6


def test_mnists_files_are_not_taken_for_emnists(tmp_path):
    write_idx(tmp_path, 1)
    assert "emnist-byclass" in refused(load_dataset, "emnist-byclass", data_dir=tmp_path)
    assert load_dataset("emnist-byclass", path=tmp_path).name == "emnist-byclass"


def test_a_folder_with_a_missing_file_is_passed_over(tmp_path, cache):
    write_idx(tmp_path / "mnist", 1)
    (tmp_path / "mnist" / PLAIN[3]).unlink()
    write_idx(cache / "mnist", 2)
    assert brightness("mnist", data_dir=tmp_path) == 2


def test_fashion_mnist_of_the_user_comes_before_debians(tmp_path):
    write_idx(tmp_path / "fashion-mnist", 7)
    assert brightness("fashion-mnist", data_dir=tmp_path) == 7


def test_cifar10_in_a_data_folder(tmp_path):
    record = bytes([3]) + bytes(3072)
    for name in [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]:
        (tmp_path / "cifar-10-batches-bin").mkdir(exist_ok=True)
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(record)
    images = load_dataset("cifar10", data_dir=tmp_path)
    assert images.pixels.shape == (6, 3, 32, 32)
    assert images.train_count == 5
    assert "'cifar10'" in refused(load_dataset, "cifar10", data_dir=tmp_path, task="class")


def test_an_empty_variable_is_no_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(write_idx(tmp_path / "here", 1))
    monkeypatch.setenv("SHOAL_DATA", "")
    assert "mnist' was not found in" in refused(load_dataset, "mnist")


@pytest.mark.parametrize(
    ("name", "phrases"),
    [
        ("mnist", ["'shoal data --fetch mnist'", "train-images-idx3-ubyte", "shoal[hub]"]),
        ("emnist-byclass", ["'shoal data --fetch emnist-byclass'", "'emnist-byclass-test-images-idx3-ubyte'"]),
        ("cifar10", ["'shoal data --fetch cifar10'", "cifar-10-binary.tar.gz"]),
        ("lfw", ["lfw-funneled.tgz", "lfw_attributes.txt", "SHOAL_DATA", "shoal[images]"]),
        ("idx", ["'path'", "'idx'"]),
        ("fashion-minst", ["'fashion-minst'", "did you mean 'fashion-mnist'?"]),
        ("imagenet21k", ["'imagenet21k'"]),
    ],
)
def test_a_source_that_is_not_on_this_machine_is_one_sentence(name, phrases):
    sentence = refused(load_dataset, name)
    assert all(word in sentence for word in phrases), sentence


def test_a_missing_source_lists_the_folders_tried(tmp_path, cache):
    sentence = refused(load_dataset, "mnist", data_dir=tmp_path / "data")
    for folder in (
        tmp_path / "data" / "mnist",
        tmp_path / "data" / "MNIST" / "raw",
        tmp_path / "data",
        cache / "mnist",
    ):
        assert f"'{folder}'" in sentence
    assert "test_a_missing_source_lists_th0" in refused(load_dataset, "mnist", path=tmp_path / "no")


def test_availability_lists_every_source_and_its_path(tmp_path, cache):
    rows = {row.name: row for row in availability(None)}
    assert list(rows) == [
        "digits",
        "mnist",
        "fashion-mnist",
        "emnist-byclass",
        "cifar10",
        "lfw",
        "yelp",
        "idx",
        "folder",
        "table",
        *NAMED_TABLES,
    ]
    path = rows["digits"].path
    assert path is not None
    assert path.is_file()
    assert rows["fashion-mnist"].path == DEBIAN
    assert [rows[name].path for name in ("mnist", "emnist-byclass", "cifar10", "lfw", "idx")] == [None] * 5
    assert rows["fashion-mnist"].size == "70,000 of 28x28"
    assert "apt-get install dataset-fashion-mnist" in rows["fashion-mnist"].instructions
    (tmp_path / "cifar-10-binary.tar.gz").touch()  # not read
    write_idx(cache / "mnist", 1)
    rows = {row.name: row for row in availability(tmp_path)}
    assert rows["cifar10"].path == tmp_path / "cifar-10-binary.tar.gz"
    assert rows["mnist"].path == cache / "mnist"


RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (5, 3, 4), dtype=np.uint8)
TEST = RNG.integers(0, 256, (2, 3, 4), dtype=np.uint8)
TRAIN_LABELS = np.array([0, 1, 2, 1, 0], np.uint8)
TEST_LABELS = np.array([2, 0], np.uint8)


def idx_bytes(values, kind=0x08):
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, kind, values.ndim, *values.shape) + values.tobytes()


def write_folder(folder, names=PLAIN, pack=lambda content: content):
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in zip(names, (TRAIN, TRAIN_LABELS, TEST, TEST_LABELS), strict=True):
        (folder / name).write_bytes(pack(idx_bytes(values)))
    return folder


def dots(names):
    return tuple(name.replace("-idx", ".idx") for name in names)


def emnist(names):
    return tuple("emnist-byclass-" + name.replace("t10k", "test") for name in names)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("spell", [tuple, dots, lambda names: tuple(n.replace("t10k", "test") for n in names)])
def test_every_spelling_reads_the_same_whether_gzipped_or_not(tmp_path, zipped, suffix, spell):
    names = tuple(name + suffix for name in spell(PLAIN))
    folder = write_folder(tmp_path, names, gzip.compress if zipped else lambda content: content)
    images = load_idx_folder(folder, "some", 10, transposed=False)
    assert images.pixels.dtype == torch.uint8
    assert images.labels.dtype == torch.int64
    np.testing.assert_array_equal(images.pixels[:, 0].numpy(), np.concatenate([TRAIN, TEST]))
    np.testing.assert_array_equal(images.labels.numpy(), np.concatenate([TRAIN_LABELS, TEST_LABELS]))
    assert (images.name, images.white, images.train_count, images.classes) == ("some", 255, 5, 10)


@pytest.mark.parametrize("names", [emnist(PLAIN), PLAIN, dots(emnist(PLAIN))])
def test_emnist_becomes_upright(tmp_path, names):
    images = load_idx_folder(write_folder(tmp_path, names), "emnist-byclass", 62, transposed=True)
    assert images.pixels.shape == (7, 1, 4, 3)
    assert images.pixels.is_contiguous()
    np.testing.assert_array_equal(images.pixels[0, 0].numpy(), TRAIN[0].T)


def test_classes_of_an_unknown_idx_set_are_counted(tmp_path):
    assert load_idx_folder(write_folder(tmp_path), "idx", None, transposed=False).classes == 3


def test_a_test_split_may_be_empty(tmp_path):
    write_folder(tmp_path)
    (tmp_path / PLAIN[2]).write_bytes(idx_bytes(np.zeros((0, 28, 28), np.uint8)))
    (tmp_path / PLAIN[3]).write_bytes(idx_bytes(np.zeros(0, np.uint8)))
    images = load_idx_folder(tmp_path, "idx", None, transposed=False)
    assert len(images.labels) == images.train_count == 5


FLOATS = TRAIN.astype(">f4")
GOOD = idx_bytes(TRAIN)
FAILURES = [
    ("missing", 0, None, ["train-images-idx3-ubyte"]),
    ("empty", 0, b"", ["truncated", "0 of 4", "header"]),
    ("truncated", 0, GOOD[:-1], ["truncated", "59 of 60", "5x3x4"]),
    ("truncated labels", 1, idx_bytes(TRAIN_LABELS)[:-2], ["train-labels", "truncated", "3 of 5"]),
    ("lying header", 0, struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1), ["truncated", "0 of"]),
    ("trailing", 0, GOOD + b"\0", ["60", "5x3x4"]),
    ("magic", 0, b"\x89PNG" + GOOD[4:], ["0x89504e47", "0x00000803"]),
    ("unknown type", 0, idx_bytes(TRAIN, 0x0A), ["0x00000a03"]),
    ("float", 0, idx_bytes(FLOATS, 0x0D), ["wrong pixel type float (0x0d)", "unsigned byte (0x08)"]),
    ("int labels", 1, idx_bytes(TRAIN_LABELS.astype(">i4"), 0x0C), ["wrong label type int (0x0c)"]),
    ("labels as images", 0, idx_bytes(TRAIN_LABELS), ["3 dimensions"]),
    ("images as labels", 1, GOOD, ["train-labels", "1 dimension"]),
    ("fewer labels", 1, idx_bytes(TRAIN_LABELS[:4]), ["4 labels", "5 images"]),
    ("label", 1, idx_bytes(TRAIN_LABELS + 8), ["train-labels", "10", "'some'", "0 to 9"]),
    ("test size", 2, idx_bytes(np.zeros((2, 4, 4), np.uint8)), ["t10k-images", "4x4", "3x4"]),
    ("no pixels", 0, idx_bytes(np.zeros((5, 0, 4), np.uint8)), ["0x4", "1x1"]),
    ("half a gzip", 0, gzip.compress(GOOD)[:-12], ["truncated", "gzip"]),
    ("gzip checksum cut", 0, gzip.compress(GOOD)[:-4], ["truncated", "gzip"]),
    ("gzip checksum", 0, gzip.compress(GOOD)[:-8] + b"12345678", ["corrupt", "gzip"]),
    ("gzip body", 0, gzip.compress(GOOD)[:10] + b"\x07" * 60, ["corrupt", "gzip"]),
]


@pytest.mark.parametrize(("index", "content", "phrases"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES])
def test_a_bad_file_is_one_sentence(tmp_path, index, content, phrases):
    write_folder(tmp_path)
    if content is None:
        (tmp_path / PLAIN[index]).unlink()
    else:
        (tmp_path / PLAIN[index]).write_bytes(content)
    sentence = refused(load_idx_folder, tmp_path, "some", 10, transposed=False)
    assert all(word in sentence for word in [*phrases, str(tmp_path)]), sentence


def test_zero_training_images(tmp_path):
    write_folder(tmp_path)
    (tmp_path / PLAIN[0]).write_bytes(idx_bytes(TRAIN[:0]))
    (tmp_path / PLAIN[1]).write_bytes(idx_bytes(TRAIN_LABELS[:0]))
    with pytest.raises(InputError, match="images"):
        load_idx_folder(tmp_path, "some", 10, transposed=False)


def test_a_missing_emnist_file_is_named_with_its_prefix(tmp_path):
    names = emnist(PLAIN)
    write_folder(tmp_path, names)
    (tmp_path / names[2]).unlink()
    with pytest.raises(InputError, match=r"'emnist-byclass-test-images-idx3-ubyte' \(plain or \.gz\)"):
        load_idx_folder(tmp_path, "emnist-byclass", 62, transposed=True)


def test_no_such_folder_and_no_such_file(tmp_path):
    with pytest.raises(InputError, match="every file"):
        load_idx_folder(tmp_path / "nowhere", "some", 10, transposed=False)
    with pytest.raises(InputError, match="is missing"):
        read_idx(tmp_path / "nothing", "images")
    with pytest.raises(InputError, match="cannot be read"):
        read_idx(tmp_path, "images")
