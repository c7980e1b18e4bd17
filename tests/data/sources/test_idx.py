import gzip
import struct

import numpy as np
import pytest
import torch

from refused_input import refused
from shoal.core.errors import InputError
from shoal.data.sources.idx import load_idx_folder, read_idx

RNG = np.random.default_rng(0)
TRAIN = RNG.integers(0, 256, (5, 3, 4), dtype=np.uint8)
TEST = RNG.integers(0, 256, (2, 3, 4), dtype=np.uint8)
TRAIN_LABELS = np.array([0, 1, 2, 1, 0], np.uint8)
TEST_LABELS = np.array([2, 0], np.uint8)
NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx_bytes(values, kind=0x08):
    return struct.pack(f">BBBB{values.ndim}I", 0, 0, kind, values.ndim, *values.shape) + values.tobytes()


def write_folder(folder, names=NAMES, pack=lambda content: content):
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
    names = tuple(name + suffix for name in spell(NAMES))
    folder = write_folder(tmp_path, names, gzip.compress if zipped else lambda content: content)
    images = load_idx_folder(folder, "some", 10, transposed=False)
    assert images.pixels.dtype == torch.uint8
    assert images.labels.dtype == torch.int64
    np.testing.assert_array_equal(images.pixels[:, 0].numpy(), np.concatenate([TRAIN, TEST]))
    np.testing.assert_array_equal(images.labels.numpy(), np.concatenate([TRAIN_LABELS, TEST_LABELS]))
    assert (images.name, images.white, images.train_count, images.classes) == ("some", 255, 5, 10)


@pytest.mark.parametrize("names", [emnist(NAMES), NAMES, dots(emnist(NAMES))])
def test_emnist_becomes_upright(tmp_path, names):
    images = load_idx_folder(write_folder(tmp_path, names), "emnist-byclass", 62, transposed=True)
    assert images.pixels.shape == (7, 1, 4, 3)
    assert images.pixels.is_contiguous()
    np.testing.assert_array_equal(images.pixels[0, 0].numpy(), TRAIN[0].T)


def test_classes_of_an_unknown_idx_set_are_counted(tmp_path):
    assert load_idx_folder(write_folder(tmp_path), "idx", None, transposed=False).classes == 3


def test_a_test_split_may_be_empty(tmp_path):
    write_folder(tmp_path)
    (tmp_path / NAMES[2]).write_bytes(idx_bytes(np.zeros((0, 28, 28), np.uint8)))
    (tmp_path / NAMES[3]).write_bytes(idx_bytes(np.zeros(0, np.uint8)))
    images = load_idx_folder(tmp_path, "idx", None, transposed=False)
    assert len(images.labels) == images.train_count == 5


FLOATS = TRAIN.astype(">f4")
GOOD = idx_bytes(TRAIN)
FAILURES = [
    ("missing", 0, None, ["train-images-idx3-ubyte", "missing"]),
    ("empty", 0, b"", ["truncated", "0 of the 4 bytes", "header"]),
    ("truncated", 0, GOOD[:-1], ["truncated", "59 of the 60 bytes", "5x3x4 images"]),
    ("truncated labels", 1, idx_bytes(TRAIN_LABELS)[:-2], ["train-labels", "truncated", "3 of the 5 bytes"]),
    ("lying header", 0, struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1), ["truncated", "0 of the"]),
    ("trailing", 0, GOOD + b"\0", ["trailing bytes", "60", "5x3x4"]),
    ("magic", 0, b"\x89PNG" + GOOD[4:], ["wrong magic number 0x89504e47", "0x00000803"]),
    ("unknown type", 0, idx_bytes(TRAIN, 0x0A), ["wrong magic number 0x00000a03"]),
    ("float", 0, idx_bytes(FLOATS, 0x0D), ["wrong pixel type float (0x0d)", "unsigned byte (0x08)"]),
    ("int labels", 1, idx_bytes(TRAIN_LABELS.astype(">i4"), 0x0C), ["wrong label type int (0x0c)"]),
    ("labels as images", 0, idx_bytes(TRAIN_LABELS), ["1 dimensions", "images have 3"]),
    ("images as labels", 1, GOOD, ["train-labels", "3 dimensions", "labels have 1"]),
    ("fewer labels", 1, idx_bytes(TRAIN_LABELS[:4]), ["4 labels for the 5 images", "must be equal"]),
    ("label", 1, idx_bytes(TRAIN_LABELS + 8), ["train-labels", "label 10", "a class that 'some' lacks", "0 to 9"]),
    ("test size", 2, idx_bytes(np.zeros((2, 4, 4), np.uint8)), ["t10k-images", "4x4", "3x4"]),
    ("no pixels", 0, idx_bytes(np.zeros((5, 0, 4), np.uint8)), ["0x4 pixels", "1x1"]),
    ("half a gzip", 0, gzip.compress(GOOD)[:-12], ["truncated", "gzip"]),
    ("gzip checksum cut", 0, gzip.compress(GOOD)[:-4], ["truncated", "gzip"]),
    ("gzip checksum", 0, gzip.compress(GOOD)[:-8] + b"12345678", ["damaged", "gzip"]),
    ("gzip body", 0, gzip.compress(GOOD)[:10] + b"\x07" * 60, ["damaged", "gzip"]),
]


@pytest.mark.parametrize(("index", "content", "phrases"), [f[1:] for f in FAILURES], ids=[f[0] for f in FAILURES])
def test_a_bad_file_is_one_sentence(tmp_path, index, content, phrases):
    write_folder(tmp_path)
    if content is None:
        (tmp_path / NAMES[index]).unlink()
    else:
        (tmp_path / NAMES[index]).write_bytes(content)
    sentence = refused(load_idx_folder, tmp_path, "some", 10, transposed=False)
    assert all(word in sentence for word in [*phrases, str(tmp_path)]), sentence


def test_zero_training_images(tmp_path):
    write_folder(tmp_path)
    (tmp_path / NAMES[0]).write_bytes(idx_bytes(TRAIN[:0]))
    (tmp_path / NAMES[1]).write_bytes(idx_bytes(TRAIN_LABELS[:0]))
    with pytest.raises(InputError, match="zero images"):
        load_idx_folder(tmp_path, "some", 10, transposed=False)


def test_a_missing_emnist_file_is_named_with_its_prefix(tmp_path):
    names = emnist(NAMES)
    write_folder(tmp_path, names)
    (tmp_path / names[2]).unlink()
    with pytest.raises(InputError, match=r"'emnist-byclass-test-images-idx3-ubyte' .* missing"):
        load_idx_folder(tmp_path, "emnist-byclass", 62, transposed=True)


def test_no_such_folder_and_no_such_file(tmp_path):
    with pytest.raises(InputError, match="every file is missing"):
        load_idx_folder(tmp_path / "nowhere", "some", 10, transposed=False)
    with pytest.raises(InputError, match="is missing"):
        read_idx(tmp_path / "nothing", "images")
    with pytest.raises(InputError, match="cannot be read"):
        read_idx(tmp_path, "images")
