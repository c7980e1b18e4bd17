"""Reader of MNIST's file format, IDX, plain or gzipped.

Source: LeCun, Cortes, Burges, "The MNIST database of handwritten digits": two zero bytes, one byte for the type of
an element (0x08: unsigned byte), one for the number of dimensions, each dimension as a big-endian 32-bit number, then
the elements, last dimension fastest. EMNIST (Cohen et al. 2017) keeps the format but stores each image transposed.
"""

import contextlib
import gzip
import io
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.data.datasets import ImageDataset

_What = Literal["images", "labels"]
_TYPES = {0x08: "unsigned byte", 0x09: "signed byte", 0x0B: "short", 0x0C: "int", 0x0D: "float", 0x0E: "double"}
_DIMENSIONS = {"images": 3, "labels": 1}
_FILES: list[tuple[tuple[str, ...], _What]] = [
    (("train",), "images"),
    (("train",), "labels"),
    (("t10k", "test"), "images"),
    (("t10k", "test"), "labels"),
]
_BLOCK = 1 << 24  # bytes read at a time, so that a wrong size in a header cannot exhaust the memory


def load_idx_folder(folder: Path, name: str, classes: int | None, transposed: bool) -> ImageDataset:
    """The four files of a folder in MNIST's format as one set, the training split first.

    Accepts ``train-images-idx3-ubyte`` and ``train-images.idx3-ubyte``, the same for labels and for ``t10k`` (or
    ``test``), each with or without ``.gz``; a transposed set may also carry EMNIST's prefix ``emnist-byclass-``.
    The test split may be empty, the training split may not.

    Args:
        folder: of the files.
        name: of the set.
        classes: of the official set; None: one more than the largest label.
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
        with opened(path) as file:
            shapes.append(_shape(file, path, "images"))
    return f"{sum(shape[0] for shape in shapes):,} of {shapes[0][1]}x{shapes[0][2]}"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[io.BufferedIOBase]:
    """A file open for reading, decompressed if its first bytes are gzip's, whatever its name.

    Raises:
        InputError: the file cannot be read, or proves truncated or damaged while it is read.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            if zipped:
                with gzip.GzipFile(fileobj=file, mode="rb") as unzipped:
                    yield unzipped
            else:
                yield file
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing") from error
    except EOFError as error:
        raise InputError(f"'{path}' is truncated: its gzip stream ends too early; fetch the file again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"'{path}' is damaged: its gzip stream is corrupt ({error}); fetch the file again") from error
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror or error}; a readable file is needed") from error


def read_idx(path: Path, what: _What) -> Tensor:
    """The elements of an IDX file: images (M, H, W) or labels (M,), uint8; M may be 0.

    Raises:
        InputError: the file is missing, damaged, or not of that many dimensions of unsigned bytes.
    """
    with opened(path) as file:
        shape = _shape(file, path, what)
        size, described = math.prod(shape), f"{'x'.join(map(str, shape))} {what}"
        content = _exactly(file, size, path, described)
        require(
            not file.read(1), f"'{path}' has trailing bytes after the {size:,} that its header ({described}) allows"
        )
    return torch.from_numpy(np.frombuffer(content, np.uint8)).reshape(shape)


def _shape(file: io.BufferedIOBase, path: Path, what: _What) -> list[int]:
    """The shape that a file's header says."""
    magic, dimensions = _exactly(file, 4, path, "header"), _DIMENSIONS[what]
    if magic[:2] != b"\0\0" or magic[2] not in _TYPES:
        expected = bytes([0, 0, 0x08, dimensions]).hex()
        raise InputError(f"'{path}' has the wrong magic number 0x{magic.hex()}; IDX {what} begin with 0x{expected}")
    require(
        magic[2] == 0x08,
        f"'{path}' has the wrong {'pixel' if what == 'images' else 'label'} type {_TYPES[magic[2]]} "
        f"(0x{magic[2]:02x}); only unsigned byte (0x08) is allowed",
    )
    require(magic[3] == dimensions, f"'{path}' has {magic[3]} dimensions; {what} have {dimensions}")
    return np.frombuffer(_exactly(file, 4 * dimensions, path, "header"), ">u4").tolist()


def _exactly(file: io.BufferedIOBase, size: int, path: Path, what: str) -> bytearray:
    """The next ``size`` bytes of a file; ``what`` names them in the error sentence."""
    content = bytearray()
    while len(content) < size:
        block = file.read(min(_BLOCK, size - len(content)))
        if not block:
            raise InputError(f"'{path}' is truncated: it has {len(content):,} of the {size:,} bytes of its {what}")
        content += block
    return content


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


def _names(parts: tuple[str, ...], what: _What, prefixed: bool) -> list[str]:
    """The accepted names of a file, in the order in which they are tried."""
    prefix = "emnist-byclass-" if prefixed else ""
    stems = [f"{prefix}{part}-{what}{separator}idx{_DIMENSIONS[what]}-ubyte" for part in parts for separator in "-."]
    return [stem + suffix for stem in stems for suffix in ("", ".gz")]


def _find(folder: Path, parts: tuple[str, ...], what: _What, prefixed: bool) -> Path | None:
    return next((path for name in _names(parts, what, prefixed) if (path := folder / name).is_file()), None)


def _first_missing(folder: Path, transposed: bool) -> str:
    """The usual name of the first file that a folder lacks; it lacks one."""
    if not folder.is_dir():
        return "every file"
    prefixed = transposed and any(folder.glob("emnist-byclass-*"))
    parts, what = next(file for file in _FILES if _find(folder, *file, prefixed) is None)
    usual = parts[-1:] if prefixed else parts[:1]  # EMNIST says test, MNIST t10k
    return f"'{_names(usual, what, prefixed)[0]}' (plain or .gz)"
