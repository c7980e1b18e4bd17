"""Readers of MNIST's file format, IDX, plain or gzipped, and of CIFAR-10's official binary version.

Source: LeCun, Cortes, Burges, "The MNIST database of handwritten digits": two zero bytes, one byte for the type of
an element (0x08: unsigned byte), one for the number of dimensions, each dimension as a big-endian 32-bit number, then
the elements, last dimension fastest. EMNIST (Cohen et al. 2017) keeps the format but stores each image transposed.

Krizhevsky, "The CIFAR-10 dataset" (2009): a batch is a sequence of records, one label byte, then the red, the green and
the blue plane of the image, each 32 rows of 32 pixels.
"""

import io
import math
import re
import tarfile
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.core import foreign_files
from shoal.core.errors import InputError, quote, require
from shoal.core.foreign_files import open_file
from shoal.data.datasets import ImageDataset

_Part = Literal["images", "labels"]
_TYPES = {0x08: "unsigned byte", 0x09: "signed byte", 0x0B: "short", 0x0C: "int", 0x0D: "float", 0x0E: "double"}
_DIMENSIONS = {"images": 3, "labels": 1}
_FILES: list[tuple[str, _Part]] = [
    ("train", "images"),
    ("train", "labels"),
    ("t10k|test", "images"),
    ("t10k|test", "labels"),
]
_PREFIX = "emnist-byclass-"


def load_idx_folder(folder: Path, name: str, classes: int | None, transposed: bool) -> ImageDataset:
    """The four files of a folder in MNIST's format as one set, the training split first.

    Accepts ``train-images-idx3-ubyte`` and ``train-images.idx3-ubyte``, the same for labels and for ``t10k`` (or
    ``test``), each with or without ``.gz``; a transposed set may also carry EMNIST's prefix ``emnist-byclass-``.
    The test split may be empty, the training split may not.

    Args:
        folder, name: the set's folder and name.
        classes: the number of classes of the official set; None: one more than the largest label.
        transposed: whether the files store each image transposed, as EMNIST's do; the result is upright.

    Raises:
        InputError: a file is missing, damaged or of another type, or the files do not fit together.
    """
    paths = idx_files(folder, prefixed=transposed) or (idx_files(folder) if transposed else None)
    if paths is None:
        missing = _first_missing(folder, transposed)
        raise InputError(f"{missing} is missing from '{folder}'; MNIST's format has images and labels of both splits")
    (train, train_labels), (test, test_labels) = _pair(*paths[:2]), _pair(*paths[2:])
    require(len(train) > 0, f"'{paths[0]}' holds zero images; a training split needs at least 1")
    if len(test) == 0:
        test = train[:0]
    size, expected = size_of(test), size_of(train)
    require(size == expected, f"'{paths[2]}' has images of {size} pixels; those of the training split have {expected}")
    labels = torch.cat([train_labels, test_labels])
    if classes is None:
        classes = int(labels.max()) + 1
    for path, part in ((paths[1], train_labels), (paths[3], test_labels)):
        last = int(part.max()) if len(part) else 0
        require(
            last < classes, f"'{path}' has label {last}, a class that '{name}' lacks; allowed are 0 to {classes - 1}"
        )
    pixels = torch.cat([train, test])
    if transposed:
        pixels = pixels.transpose(1, 2).contiguous()
    return ImageDataset(name, pixels[:, None], 255, labels, len(train), classes)


def idx_files(folder: Path, prefixed: bool = False) -> list[Path] | None:
    """Training images, training labels, test images and test labels in a folder; None unless all four are there."""
    paths = [_find(folder, *file, prefixed) for file in _FILES]
    return None if None in paths else [path for path in paths if path is not None]


def count_idx_images(folder: Path, prefixed: bool = False) -> str:
    """Number and size of the images in a folder, as the headers of its four files say: ``"70,000 of 28x28"``.

    Raises:
        InputError: a header is damaged.
    """
    shapes = []
    for path in (idx_files(folder, prefixed) or [])[::2]:
        with open_file(path) as file:
            shapes.append(_shape(file, path, "images"))
    return f"{sum(shape[0] for shape in shapes):,} of {shapes[0][1]}x{shapes[0][2]}"


def read_idx(path: Path, what: _Part) -> Tensor:
    """The elements of an IDX file: images (M, H, W) or labels (M,), uint8; M may be 0.

    Raises:
        InputError: the file is missing, damaged, or not of that many dimensions of unsigned bytes.
    """
    with open_file(path) as file:
        shape = _shape(file, path, what)
        size, described = math.prod(shape), f"{'x'.join(map(str, shape))} {what}"
        most = foreign_files.MAX_BYTES
        content = bytearray(file.read(min(size, most) + 1))
    require(len(content) <= most, f"'{path}' has {described}; at most {most:,} bytes are allowed")
    _require_whole(content, size, path, described)
    require(
        len(content) == size, f"'{path}' has trailing bytes after the {size:,} that its header ({described}) allows"
    )
    return torch.from_numpy(np.frombuffer(content, np.uint8)).reshape(shape)


def _shape(file: io.BufferedIOBase, path: Path, what: _Part) -> list[int]:
    """The shape that a file's header says."""
    magic, dimensions = file.read(4), _DIMENSIONS[what]
    _require_whole(magic, 4, path, "header")
    if magic[:2] != b"\0\0" or magic[2] not in _TYPES:
        expected = bytes([0, 0, 0x08, dimensions]).hex()
        raise InputError(f"'{path}' has the wrong magic number 0x{magic.hex()}; IDX {what} begin with 0x{expected}")
    require(
        magic[2] == 0x08,
        f"'{path}' has the wrong {'pixel' if what == 'images' else 'label'} type {_TYPES[magic[2]]} "
        f"(0x{magic[2]:02x}); only unsigned byte (0x08) is allowed",
    )
    require(magic[3] == dimensions, f"'{path}' has {magic[3]} dimensions; {what} have {dimensions}")
    shape = file.read(4 * dimensions)
    _require_whole(shape, 4 * dimensions, path, "header")
    return np.frombuffer(shape, ">u4").tolist()


def _require_whole(content: bytes | bytearray, size: int, path: Path, what: str) -> None:
    require(len(content) >= size, f"'{path}' is truncated: it has {len(content):,} of the {size:,} bytes of its {what}")


def _pair(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    images, labels = read_idx(images_path, "images"), read_idx(labels_path, "labels").long()
    require(
        images.shape[1] > 0 and images.shape[2] > 0,
        f"'{images_path}' has images of {size_of(images)} pixels; at least 1x1 is needed",
    )
    require(
        len(images) == len(labels),
        f"'{labels_path}' has {len(labels):,} labels for the {len(images):,} images of '{images_path.name}'; the "
        "counts must be equal",
    )
    return images, labels


def size_of(images: Tensor) -> str:
    """Height and width of images (..., H, W) in sentences."""
    return f"{images.shape[-2]}x{images.shape[-1]}"


def _find(folder: Path, part: str, what: _Part, prefixed: bool) -> Path | None:
    """A file by its accepted names; of several the first in alphabetical order."""
    name = re.compile(rf"{_PREFIX * prefixed}({part})-{what}[-.]idx{_DIMENSIONS[what]}-ubyte(\.gz)?")
    return min((path for path in folder.glob("*-ubyte*") if name.fullmatch(path.name) and path.is_file()), default=None)


def _first_missing(folder: Path, transposed: bool) -> str:
    """The usual name of the first file that a folder lacks; it lacks one."""
    if not folder.is_dir():
        return "every file"
    prefixed = transposed and any(folder.glob(f"{_PREFIX}*"))
    part, what = next(file for file in _FILES if _find(folder, *file, prefixed) is None)
    usual = part.split("|")[-1 if prefixed else 0]  # EMNIST says test, MNIST t10k
    return f"'{_PREFIX * prefixed}{usual}-{what}-idx{_DIMENSIONS[what]}-ubyte' (plain or .gz)"


BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_RECORD = np.dtype([("label", "u1"), ("pixels", "u1", (3, 32, 32))])
_FOLDER = "cifar-10-batches-bin"
_ARCHIVES = ("cifar-10-binary.tar.gz", "cifar-10-binary.tar")


def find_cifar10(folder: Path) -> Path | None:
    """The path of CIFAR-10 in a folder: the folder itself, an extracted folder with all batches, or an archive."""
    for batches in (folder, folder / _FOLDER):
        if all((batches / name).is_file() for name in BATCHES):
            return batches
    return next((path for name in _ARCHIVES if (path := folder / name).is_file()), None)


def load_cifar10(path: Path) -> ImageDataset:
    """CIFAR-10: 60,000 colour images of 32x32 pixels in 10 classes, the 50,000 for training first.

    Args:
        path: an archive, the folder of extracted batches, or a folder that contains either.

    Raises:
        InputError: a batch is missing or damaged.
    """
    if path.is_dir():
        path = find_cifar10(path) or path
    if path.is_dir():
        contents = {name: _read(path / name) for name in BATCHES if (path / name).is_file()}
    else:
        contents = _read_archive(path)
    missing = [name for name in BATCHES if name not in contents]
    require(
        not missing, f"'{path}' lacks {quote(missing)}; the binary version of CIFAR-10 has the files {quote(BATCHES)}"
    )
    batches = [_batch(contents[name], f"'{name}' of '{path}'") for name in BATCHES]
    pixels, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return ImageDataset("cifar10", pixels, 255, labels, len(labels) - len(batches[-1][1]), 10)


def _read(path: Path) -> bytes:
    with open_file(path) as file:
        content = file.read(foreign_files.MAX_BYTES + 1)
    _require_small(len(content), path)
    return content


def _require_small(size: int, path: Path) -> None:
    most = foreign_files.MAX_BYTES
    require(size <= most, f"'{path}' has more than {most:,} bytes, decompressed; those of CIFAR-10 have fewer")


def _read_archive(path: Path) -> dict[str, bytes]:
    """The batches in an archive, by their names without folders; nothing is extracted to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(_read(path)), mode="r:") as archive:
            files = {file.name.rpartition("/")[2]: file for file in archive if file.isfile()}
            # A sparse file may state any size.
            _require_small(sum(file.size for file in files.values()), path)
            parts = {name: archive.extractfile(files[name]) for name in BATCHES if name in files}
            return {name: part.read() for name, part in parts.items() if part is not None}
    except tarfile.TarError as error:
        raise InputError(f"'{path}' is truncated or not a tar archive ({error}); fetch it again") from error


def _batch(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """Pixels (n, 3, 32, 32) uint8 and labels (n,) int64."""
    require(
        len(content) > 0 and len(content) % _RECORD.itemsize == 0,
        f"{name} has {len(content):,} bytes; a batch of CIFAR-10 has one or more records of {_RECORD.itemsize:,} bytes",
    )
    records = np.frombuffer(content, _RECORD)
    largest = records["label"].max()
    require(largest <= 9, f"{name} has the label {largest}; the labels of CIFAR-10 are 0 to 9")
    return torch.from_numpy(records["pixels"].copy()), torch.from_numpy(records["label"].astype(np.int64))
