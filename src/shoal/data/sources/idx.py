"""Readers of IDX, MNIST's file format, plain or gzipped, and of CIFAR-10's official binary version.

Source of IDX: LeCun, Cortes, Burges, "The MNIST database of handwritten digits". EMNIST (Cohen et al. 2017) stores each
image transposed.

Source of CIFAR-10: Krizhevsky, "The CIFAR-10 dataset" (2009). In a batch of CIFAR-10, a record
is one label byte and the image's red, green and blue planes.
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
    """Read the four files of a folder in MNIST's format as one data set, the training split first.

    File names are MNIST's, such as ``train-images-idx3-ubyte`` and ``t10k-labels-idx1-ubyte``. A name may have ``test``
    for ``t10k``, a dot before ``idx``, and the suffix ``.gz``. Files of a transposed data set may have EMNIST's prefix
    ``emnist-byclass-``. Only the test split may be empty.

    Args:
        classes: the number of classes, or None for the largest label + 1.
        transposed: whether the files store each image transposed, like EMNIST's; the returned images are upright.

    Raises:
        InputError: a file is missing, damaged or of a different type, or the files do not match.
    """
    paths = idx_files(folder, prefixed=transposed) or (idx_files(folder) if transposed else None)
    if paths is None:
        missing = _first_missing(folder, transposed)
        raise InputError(f"'{folder}' lacks {missing}; a folder in MNIST's format has images and labels of both splits")
    (train, train_labels), (test, test_labels) = _pair(*paths[:2]), _pair(*paths[2:])
    require(len(train) > 0, f"'{paths[0]}' must have at least 1 image (got 0)")
    if len(test) == 0:
        test = train[:0]
    size, expected = size_of(test), size_of(train)
    require(
        size == expected, f"'{paths[2]}' must have images of {expected} pixels, like the training split (got {size})"
    )
    labels = torch.cat([train_labels, test_labels])
    if classes is None:
        classes = int(labels.max()) + 1
    for path, part in ((paths[1], train_labels), (paths[3], test_labels)):
        last = int(part.max()) if len(part) else 0
        require(last < classes, f"the labels of '{path}' must be from 0 to {classes - 1}, as in '{name}' (got {last})")
    pixels = torch.cat([train, test])
    if transposed:
        pixels = pixels.transpose(1, 2).contiguous()
    return ImageDataset(name, pixels[:, None], 255, labels, len(train), classes)


def idx_files(folder: Path, prefixed: bool = False) -> list[Path] | None:
    """Return the paths of training images, training labels, test images and test labels, or None unless all exist."""
    paths = [_find(folder, *file, prefixed) for file in _FILES]
    return None if None in paths else [path for path in paths if path is not None]


def count_idx_images(folder: Path, prefixed: bool = False) -> str:
    """Return the number and size of the images in a folder from its files' headers, such as ``"70,000 of 28x28"``.

    Raises:
        InputError: a header is damaged.
    """
    shapes = []
    for path in (idx_files(folder, prefixed) or [])[::2]:
        with open_file(path) as file:
            shapes.append(_shape(file, path, "images"))
    return f"{sum(shape[0] for shape in shapes):,} of {shapes[0][1]}x{shapes[0][2]}"


def read_idx(path: Path, what: _Part) -> Tensor:
    """Read an IDX file of M >= 0 images (M, H, W) or labels (M,), uint8.

    Raises:
        InputError: the file is missing or damaged, or is not an array of unsigned bytes with the right number of
            dimensions.
    """
    with open_file(path) as file:
        shape = _shape(file, path, what)
        size, described = math.prod(shape), f"{'x'.join(map(str, shape))} {what}"
        most = foreign_files.MAX_BYTES
        content = bytearray(file.read(min(size, most) + 1))
    require(len(content) <= most, f"'{path}' must have at most {most:,} bytes (got {size:,} bytes of {described})")
    _require_whole(content, size, path, described)
    require(
        len(content) == size,
        f"'{path}' must have {size:,} bytes after its header, {described} (got {len(content):,} or more)",
    )
    return torch.from_numpy(np.frombuffer(content, np.uint8)).reshape(shape)


def _shape(file: io.BufferedIOBase, path: Path, what: _Part) -> list[int]:
    """Read the array's shape from a file's header."""
    magic, dimensions = file.read(4), _DIMENSIONS[what]
    _require_whole(magic, 4, path, "header")
    if magic[:2] != b"\0\0" or magic[2] not in _TYPES:
        expected = bytes([0, 0, 0x08, dimensions]).hex()
        raise InputError(f"'{path}' must begin with the magic number 0x{expected} of IDX {what} (got 0x{magic.hex()})")
    require(
        magic[2] == 0x08,
        f"'{path}' has the wrong {'pixel' if what == 'images' else 'label'} type {_TYPES[magic[2]]} "
        f"(0x{magic[2]:02x}); it must be unsigned byte (0x08)",
    )
    require(
        magic[3] == dimensions, f"'{path}' must have {dimensions} dimensions, as an IDX file of {what} (got {magic[3]})"
    )
    shape = file.read(4 * dimensions)
    _require_whole(shape, 4 * dimensions, path, "header")
    return np.frombuffer(shape, ">u4").tolist()


def _require_whole(content: bytes | bytearray, size: int, path: Path, what: str) -> None:
    require(len(content) >= size, f"'{path}' is truncated (got {len(content):,} of {size:,} bytes of its {what})")


def _pair(images_path: Path, labels_path: Path) -> tuple[Tensor, Tensor]:
    images, labels = read_idx(images_path, "images"), read_idx(labels_path, "labels").long()
    require(
        images.shape[1] > 0 and images.shape[2] > 0,
        f"'{images_path}' must have images of at least 1x1 pixels (got {size_of(images)})",
    )
    require(
        len(images) == len(labels),
        f"'{labels_path}' must have one label per image of '{images_path.name}' "
        f"(got {len(labels):,} labels for {len(images):,} images)",
    )
    return images, labels


def size_of(images: Tensor) -> str:
    """Return the height and width of images (..., H, W) as text."""
    return f"{images.shape[-2]}x{images.shape[-1]}"


def _find(folder: Path, part: str, what: _Part, prefixed: bool) -> Path | None:
    """Find a file by its accepted names; return the first in alphabetical order."""
    name = re.compile(rf"{_PREFIX * prefixed}({part})-{what}[-.]idx{_DIMENSIONS[what]}-ubyte(\.gz)?")
    return min((path for path in folder.glob("*-ubyte*") if name.fullmatch(path.name) and path.is_file()), default=None)


def _first_missing(folder: Path, transposed: bool) -> str:
    """Return the usual name of the folder's first missing file; at least one file must be missing."""
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
    """Find CIFAR-10 in a folder: the folder itself, a sub-folder with all batches, or an archive."""
    for batches in (folder, folder / _FOLDER):
        if all((batches / name).is_file() for name in BATCHES):
            return batches
    return next((path for name in _ARCHIVES if (path := folder / name).is_file()), None)


def load_cifar10(path: Path) -> ImageDataset:
    """Load CIFAR-10: 60,000 colour images of 32x32 pixels in 10 classes, the 50,000 training images first.

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
    require(not missing, f"'{path}' must have all batches of CIFAR-10's binary version (missing {quote(missing)})")
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
    require(size <= most, f"'{path}' must have at most {most:,} bytes after decompression")


def _read_archive(path: Path) -> dict[str, bytes]:
    """Read an archive's batches by file name, without extracting files to disk."""
    try:
        with tarfile.open(fileobj=io.BytesIO(_read(path)), mode="r:") as archive:
            files = {file.name.rpartition("/")[2]: file for file in archive if file.isfile()}
            # A sparse file may state any size.
            _require_small(sum(file.size for file in files.values()), path)
            parts = {name: archive.extractfile(files[name]) for name in BATCHES if name in files}
            return {name: part.read() for name, part in parts.items() if part is not None}
    except tarfile.TarError as error:
        raise InputError(
            f"'{path}' is truncated or is not a tar archive ({error}); download the archive again"
        ) from error


def _batch(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """Return pixels (n, 3, 32, 32) uint8 and labels (n,) int64."""
    require(
        len(content) > 0 and len(content) % _RECORD.itemsize == 0,
        f"{name} must have one or more records of {_RECORD.itemsize:,} bytes (got {len(content):,} bytes)",
    )
    records = np.frombuffer(content, _RECORD)
    largest = records["label"].max()
    require(largest <= 9, f"the labels of {name} must be from 0 to 9 (got {largest})")
    return torch.from_numpy(records["pixels"].copy()), torch.from_numpy(records["label"].astype(np.int64))
