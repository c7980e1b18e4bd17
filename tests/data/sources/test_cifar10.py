"""CIFAR-10's binary version: byte for byte, from folders and archives, and every damage in one sentence."""

import gzip
import io
import tarfile

import numpy as np
import pytest
import torch

from refused_input import refused
from shoal.data.sources.idx import BATCHES, find_cifar10, load_cifar10

RNG = np.random.default_rng(1)
RECORDS = [RNG.integers(0, 256, (n, 3073), dtype=np.uint8) for n in (3, 2, 2, 1, 2, 4)]
for records in RECORDS:
    records[:, 0] %= 10
CONTENTS = [records.tobytes() for records in RECORDS]


def write_folder(folder, contents=CONTENTS):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in zip(BATCHES, contents, strict=False):
        (folder / name).write_bytes(content)
    return folder


def archive(contents=CONTENTS, names=BATCHES):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        directory = tarfile.TarInfo("cifar-10-batches-bin")
        directory.type = tarfile.DIRTYPE
        tar.addfile(directory)
        for name, content in {**dict(zip(names, contents, strict=False)), "readme.html": b"read me"}.items():
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def check(images):
    """The images are the planes red, green, blue of each record, row by row, and the labels its first byte."""
    expected = np.concatenate(RECORDS)
    for plane in range(3):
        first = 1 + 1024 * plane
        assert images.pixels[:, plane].flatten(1).numpy().tobytes() == expected[:, first : first + 1024].tobytes()
    assert images.pixels[0, 2, 5, 7] == expected[0, 1 + 2 * 1024 + 5 * 32 + 7]
    assert images.pixels.dtype == torch.uint8
    assert images.labels.tolist() == expected[:, 0].tolist()
    assert images.labels.dtype == torch.int64
    assert (images.name, images.white, images.train_count, images.classes) == ("cifar10", 255, 10, 10)


def test_an_extracted_folder_and_the_folder_around_it_are_read(tmp_path):
    folder = write_folder(tmp_path / "cifar-10-batches-bin")
    check(load_cifar10(folder))
    check(load_cifar10(tmp_path))
    assert find_cifar10(tmp_path) == folder


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["cifar-10-binary.tar.gz", "renamed"])
def test_an_archive_is_read_without_extracting_it(tmp_path, zipped, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress(archive()) if zipped else archive())
    check(load_cifar10(path))
    assert list(tmp_path.iterdir()) == [path]
    if name != "renamed":
        check(load_cifar10(tmp_path))


def expect(path, phrases):
    sentence = refused(load_cifar10, path)
    assert all(phrase in sentence for phrase in [*phrases, str(path)]), sentence


BAD_BATCHES = {
    "half a record": (CONTENTS[0][:-1], ["9,218 bytes", "records of 3,073 bytes"]),
    "label": (bytes([200]) + CONTENTS[0][1:], ["200", "0 to 9"]),
    "empty": (b"", ["0 bytes", "one or more records"]),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(("content", "phrases"), BAD_BATCHES.values(), ids=BAD_BATCHES)
def test_a_bad_batch_is_one_sentence(tmp_path, content, phrases, packed):
    contents = [*CONTENTS[:5], content]
    path = tmp_path / "cifar"
    if packed:
        path.write_bytes(archive(contents))
    else:
        write_folder(path, contents)
    expect(path, [*phrases, "test_batch.bin"])


TAR = archive()
BAD_ARCHIVES = {
    "gzip cut": (gzip.compress(TAR)[:-2000], ["truncated", "gzip"]),
    "tar cut": (TAR[: len(TAR) // 2], ["truncated"]),
    "tar cut in gzip": (gzip.compress(TAR[: len(TAR) // 2]), ["truncated"]),
    "no tar": (b"hello" * 1000, ["not a tar archive"]),
    "empty": (b"", ["not a tar archive"]),
    "a batch missing": (archive(CONTENTS[:5]), ["'test_batch.bin'"]),
    "the python version": (archive(names=["data_batch_1"]), ["'data_batch_1.bin'"]),
}


@pytest.mark.parametrize(("content", "phrases"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_a_bad_archive_is_one_sentence(tmp_path, content, phrases):
    path = tmp_path / "cifar-10-binary.tar.gz"
    path.write_bytes(content)
    expect(path, phrases)


def test_a_link_in_an_archive_is_not_a_batch(tmp_path):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("data_batch_1.bin")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(info)
    path = tmp_path / "links.tar"
    path.write_bytes(buffer.getvalue())
    expect(path, ["'data_batch_1.bin'"])


def test_missing_files_are_named(tmp_path):
    folder = write_folder(tmp_path / "cifar", CONTENTS[:4])
    expect(folder, ["'data_batch_5.bin', 'test_batch.bin'"])
    expect(tmp_path / "nothing.tar.gz", ["missing"])
    assert find_cifar10(folder) is None
