"""CIFAR-10 from its official binary version, an archive or an extracted folder.

Source: Krizhevsky, "The CIFAR-10 dataset" (2009). A batch is a sequence of records: one label byte, then the red, the
green and the blue plane of the image, each 32 rows of 32 pixels.
"""

import io
import tarfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.core import foreign_files
from shoal.core.errors import InputError, quote, require
from shoal.data.datasets import ImageDataset
from shoal.data.sources.file_contents import open_file

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
        contents = _archived(path)
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


def _archived(path: Path) -> dict[str, bytes]:
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
