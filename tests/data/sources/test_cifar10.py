import gzip
import io
import os
import pickle
import struct
import tarfile
import warnings

import numpy as np
import pytest
import torch

from shoal.core.errors import InputError
from shoal.data.sources.cifar10 import find_cifar10, load_cifar10

RNG = np.random.default_rng(1)
SIZES = (3, 2, 2, 1, 2, 4)
PIXELS = [RNG.integers(0, 256, (n, 3072), dtype=np.uint8) for n in SIZES]
LABELS = [RNG.integers(0, 10, n).tolist() for n in SIZES]
PY_NAMES = [f"data_batch_{k}" for k in range(1, 6)] + ["test_batch"]
BIN_NAMES = [f"{name}.bin" for name in PY_NAMES]
ALL = np.concatenate(PIXELS).reshape(-1, 3, 32, 32)


def binary(pixels, labels):
    return b"".join(bytes([label]) + row.tobytes() for row, label in zip(pixels, labels, strict=True))


def short(text):  # SHORT_BINSTRING: a string of Python 2
    return b"U" + bytes([len(text)]) + text


def small(number):  # BININT1, BININT2
    return b"K" + bytes([number]) if number < 256 else b"M" + struct.pack("<H", number)


def python2(pixels, labels, data=None, code=b"u1", fortran=False):
    """A batch as Python 2's cPickle wrote the official ones, opcode by opcode (protocol 2)."""
    rows, columns = pixels.shape
    raw = pixels.tobytes(order="F" if fortran else "C")
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\nq\x06cnumpy\nndarray\nq\x07K\x00\x85q\x08U\x01bq\x09\x87q\x0aRq\x0b("
        b"K\x01" + small(rows) + small(columns) + b"\x86q\x0c"
        b"cnumpy\ndtype\nq\x0d" + short(code) + b"q\x0eK\x00K\x01\x87q\x0fRq\x10("
        b"K\x03U\x01|q\x11NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tq\x12b"
        + (b"\x88" if fortran else b"\x89")
        + b"T" + struct.pack("<i", len(raw)) + raw + b"q\x13tq\x14b"
    )  # fmt: skip
    return (
        b"\x80\x02}q\x01("
        + short(b"batch_label") + b"q\x02" + short(b"training batch 1 of 5") + b"q\x03"
        + short(b"labels") + b"q\x04]q\x05(" + b"".join(small(label) for label in labels) + b"e"
        + short(b"data") + (array if data is None else data)
        + short(b"filenames") + b"q\x15]q\x16(" + b"".join(short(b"a_%d.png" % k) for k in range(rows)) + b"e"
        + b"u."
    )  # fmt: skip


def python3(pixels, labels):
    return pickle.dumps({b"data": pixels, b"labels": labels, b"batch_label": b"a batch"}, protocol=2)


def contents(write):
    return [write(pixels, labels) for pixels, labels in zip(PIXELS, LABELS, strict=True)]


def write_folder(folder, names, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(names, files, strict=True):
        (folder / name).write_bytes(content)
    return folder


def archive(names, files, folder="cifar-10-batches-py"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        directory = tarfile.TarInfo(folder)
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
        for name, content in zip([*names, "readme.html"], [*files, b"read me"], strict=True):
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def check(images):
    np.testing.assert_array_equal(images.pixels.numpy(), ALL)
    assert images.pixels.dtype == torch.uint8
    assert images.labels.dtype == torch.int64
    assert images.labels.tolist() == [label for labels in LABELS for label in labels]
    assert (images.name, images.white, images.train_count, images.classes) == ("cifar10", 255, 10, 10)


WRITERS = {
    "python2": (PY_NAMES, python2),
    "python2-fortran": (PY_NAMES, lambda pixels, labels: python2(pixels, labels, fortran=True)),
    "python3": (PY_NAMES, python3),
    "binary": (BIN_NAMES, binary),
}


@pytest.fixture(params=WRITERS)
def names_and_files(request):
    names, write = WRITERS[request.param]
    return names, contents(write)


def test_our_python2_pickle_is_a_pickle_of_an_array():
    # NumPy itself reads it, so it is the official format and not only what our reader takes for it.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = pickle.loads(python2(PIXELS[0], LABELS[0]), encoding="bytes")
    np.testing.assert_array_equal(batch[b"data"], PIXELS[0])
    assert batch[b"labels"] == LABELS[0]


def test_extracted_folder_and_the_folder_around_it(tmp_path, names_and_files):
    names, files = names_and_files
    inner = "cifar-10-batches-bin" if names is BIN_NAMES else "cifar-10-batches-py"
    folder = write_folder(tmp_path / inner, names, files)
    check(load_cifar10(folder))
    check(load_cifar10(tmp_path))
    assert find_cifar10(tmp_path) == folder


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "renamed"])
def test_archives_are_told_apart_by_content(tmp_path, names_and_files, zipped, name):
    content = archive(*names_and_files)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if zipped else content)
    check(load_cifar10(path))
    assert list(tmp_path.iterdir()) == [path]  # nothing was extracted
    if name != "renamed":
        check(load_cifar10(tmp_path))


@pytest.mark.parametrize("module", ["numpy.core.multiarray", "numpy._core.multiarray"])
def test_both_names_of_numpys_module(tmp_path, module):
    content = python2(PIXELS[0], LABELS[0]).replace(b"numpy.core.multiarray", module.encode())
    check(load_cifar10(write_folder(tmp_path, PY_NAMES, [content, *contents(python2)[1:]])))


def test_keys_may_be_text(tmp_path):
    first = pickle.dumps({"data": PIXELS[0], "labels": LABELS[0]}, protocol=2)
    check(load_cifar10(write_folder(tmp_path, PY_NAMES, [first, *contents(python2)[1:]])))


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def malicious(path):
    return pickle.dumps({b"data": Evil(str(path)), b"labels": [0]}, protocol=2)


def dumps(**fields):
    return pickle.dumps({key.encode(): value for key, value in fields.items()}, protocol=2)


ONE = PIXELS[0]
BAD_PYTHON = [
    ("truncated", python2(ONE, LABELS[0])[:-100], ["truncated or no pickle"]),
    ("empty", b"", ["truncated or no pickle"]),
    ("no pickle", b"hello, world", ["pickle opcode LIST"]),
    ("list", pickle.dumps([1, 2], protocol=2), ["holds a list", "dictionary"]),
    ("no data", dumps(labels=[1]), ["no 'data'", "an array"]),
    ("no labels", dumps(data=ONE), ["no 'labels'", "a list"]),
    ("data is a list", dumps(data=[1], labels=[1]), ["'data' as list"]),
    ("float", dumps(data=ONE.astype(np.float32), labels=LABELS[0]), ["type 'f4'", "'u1'"]),
    ("signed", dumps(data=ONE.astype(np.int8), labels=LABELS[0]), ["type 'i1'", "'u1'"]),
    ("objects", dumps(data=np.array([[None]]), labels=[0]), ["'data' array that is incomplete"]),
    ("other shape", dumps(data=ONE[:, :100].copy(), labels=LABELS[0]), ["shape (3, 100)", "(n, 3072)"]),
    ("four dims", dumps(data=ONE.reshape(3, 3, 32, 32), labels=LABELS[0]), ["shape (3, 3, 32, 32)", "(n, 3072)"]),
    ("fewer bytes", python2(ONE, LABELS[0]).replace(small(3) + small(3072), small(4) + small(3072)), ["(4, 3072)"]),
    ("fewer labels", python2(ONE, [1, 2]), ["2 labels for 3 images", "must be equal"]),
    ("label", python2(ONE, [1, 2, 10]), ["label 10", "a class that CIFAR-10 lacks", "0 to 9"]),
    ("negative label", dumps(data=ONE, labels=[1, 2, -1]), ["label -1"]),
    ("text label", dumps(data=ONE, labels=[1, 2, "x"]), ["labels that are not integers"]),
    ("none", python2(ONE[:0], []), ["zero images"]),
    ("never filled", dumps(labels=[1], data=0).replace(
        b"K\x00", b"cnumpy.core.multiarray\n_reconstruct\n)R"), ["'data' array that is incomplete"]),
    ("codec", dumps(labels=[1], data=0).replace(
        b"K\x00", b"c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R"), ["encoding 'rot13'"]),
    ("eval", b"c__builtin__\neval\nX\x03\x00\x00\x001+1\x85R.", ["asks for '__builtin__.eval'"]),
    ("dotted", b"cnumpy\nndarray.__init__\n.", ["asks for 'numpy.ndarray.__init__'"]),
    ("protocol", pickle.dumps({b"labels": [1]}, protocol=4), ["protocol 4", "protocol 2"]),
    ("opcode", b"\x80\x02\x8c\x01a\x8c\x01b\x93.", ["opcode SHORT_BINUNICODE"]),
    ("object", b"\x80\x02cnumpy\ndtype\n)\x81.", ["NEWOBJ"]),
    ("memo", b"\x80\x02}r\xff\xff\xff\x7f.", ["memo 2147483647", "damaged"]),
]  # fmt: skip


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("content", "phrases"), [b[1:] for b in BAD_PYTHON], ids=[b[0] for b in BAD_PYTHON])
def test_a_bad_python_batch_is_one_sentence(tmp_path, content, phrases, packed):
    files = contents(python2)
    files[1] = content
    if packed:
        path = tmp_path / "cifar-10-python.tar.gz"
        path.write_bytes(gzip.compress(archive(PY_NAMES, files)))
    else:
        path = write_folder(tmp_path, PY_NAMES, files)
    expect(path, [*phrases, "data_batch_2"])


def expect(path, phrases):
    with pytest.raises(InputError) as caught:
        load_cifar10(path)
    sentence = str(caught.value)
    assert all(word in sentence for word in [*phrases, str(path)]), sentence
    assert "\n" not in sentence


def test_a_malicious_pickle_runs_nothing(tmp_path):
    target = tmp_path / "executed"
    pickle.loads(malicious(target))
    target.rmdir()  # the attack is a real one
    folder = write_folder(tmp_path / "py", PY_NAMES, [malicious(target), *contents(python2)[1:]])
    expect(folder, ["asks for 'posix.mkdir'", "data_batch_1"])
    assert not target.exists()


BAD_BINARY = [
    ("half a record", binary(ONE, LABELS[0])[:-1], ["9,218 bytes", "3,073"]),
    ("label", binary(ONE, [0, 1, 200]), ["label 200", "0 to 9"]),
    ("empty", b"", ["zero images"]),
]


@pytest.mark.parametrize(("content", "phrases"), [b[1:] for b in BAD_BINARY], ids=[b[0] for b in BAD_BINARY])
def test_a_bad_binary_batch_is_one_sentence(tmp_path, content, phrases):
    files = contents(binary)
    files[5] = content
    expect(write_folder(tmp_path, BIN_NAMES, files), [*phrases, "test_batch.bin"])


TAR = archive(PY_NAMES, contents(python2))
BAD_ARCHIVES = [
    ("gzip cut", gzip.compress(TAR)[:-2000], ["truncated", "gzip"]),
    ("gzip checksum cut", gzip.compress(TAR)[:-4], ["truncated", "gzip"]),
    ("gzip checksum", gzip.compress(TAR)[:-8] + b"12345678", ["damaged", "gzip"]),
    ("tar cut", TAR[: len(TAR) // 2], ["truncated"]),
    ("tar cut in gzip", gzip.compress(TAR[: len(TAR) // 2]), ["truncated"]),
    ("no tar", b"hello" * 1000, ["not a tar archive"]),
    ("empty", b"", ["not a tar archive"]),
    ("member", archive(PY_NAMES[:5], contents(python2)[:5]), ["lacks 'test_batch'", "'data_batch_1'"]),
    ("other tar", archive(["data_batch_3.bin"], [b""]), ["lacks 'data_batch_1.bin'"]),
]


@pytest.mark.parametrize(("content", "phrases"), [b[1:] for b in BAD_ARCHIVES], ids=[b[0] for b in BAD_ARCHIVES])
def test_a_bad_archive_is_one_sentence(tmp_path, content, phrases):
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(content)
    expect(path, phrases)


def test_a_link_in_an_archive_is_not_a_batch(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("data_batch_1")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    path = tmp_path / "links.tar"
    path.write_bytes(buffer.getvalue())
    expect(path, ["lacks 'data_batch_1.bin'"])


def test_missing_files(tmp_path):
    files = contents(python2)
    folder = write_folder(tmp_path / "py", PY_NAMES[:4], files[:4])
    expect(folder, ["lacks 'data_batch_5', 'test_batch'"])
    expect(tmp_path / "nothing.tar.gz", ["missing"])
    assert find_cifar10(folder) is None
