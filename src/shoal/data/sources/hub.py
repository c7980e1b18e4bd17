"""Download of data sets from the Hugging Face hub into their official formats (needs the extra ``shoal[hub]``)."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.atomic_files import write_bytes
from shoal.core.errors import InputError, file_errors, nearest, quoted, require
from shoal.data.datasets import ImageDataset
from shoal.data.sources.catalog import SOURCES, HubSource
from shoal.data.sources.cifar10 import BATCHES
from shoal.data.sources.idx import size_of

if TYPE_CHECKING:
    from datasets import Dataset


def from_hub_splits(name: str, train: "Dataset", test: "Dataset | None") -> ImageDataset:
    """Splits of the hub as one set, the training split first.

    LEAF's FEMNIST is dark ink on white, while EMNIST is light on black: an ``emnist-byclass`` that is mostly bright is
    inverted, so that both sources (and the black that a rotation brings in) agree.

    Raises:
        InputError: a missing column, an image of another size or mode, or a label outside the classes.
    """
    source = _hub_source(name)
    splits = [
        _read(name, source, part, split) for part, split in (("train", train), ("test", test)) if split is not None
    ]
    size = size_of(splits[0][0])
    for pixels, _ in splits[1:]:
        require(size_of(pixels) == size, f"'{name}' has test images of {size_of(pixels)} pixels; training has {size}")
    pixels, labels = (torch.cat(parts) for parts in zip(*splits, strict=True))
    if name == "emnist-byclass" and pixels.sum(dtype=torch.int64) > pixels.numel() * 255 // 2:
        pixels = 255 - pixels
    return ImageDataset(name, pixels, 255, labels, len(splits[0][1]), source.classes)


def fetch(name: str, destination: Path) -> Path:
    """Download a set and keep it in its official format in the folder ``destination / name``.

    Grey sets become IDX files (EMNIST's transposed, as the official ones; the hub's version has no test split,
    so its test files are empty), CIFAR-10 binary batches. Each file is complete or absent. `load_dataset` finds the
    folder if ``destination`` is its data directory.

    Raises:
        InputError: unknown set, the extra is not installed, the download fails, or the folder cannot be written.
    """
    source = _hub_source(name)
    try:
        from datasets import load_dataset  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise InputError(f"fetching '{name}' needs Hugging Face's datasets: pip install 'shoal[hub]'") from error
    try:
        # split= picks one Dataset, which the declared return type does not know.
        train: Any = load_dataset(source.repository, split="train")
        test: Any = load_dataset(source.repository, split="test") if source.test else None
    except Exception as error:  # whatever the network, the hub or its libraries raise, the user's answer is the same
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        where = f"'{name}' ({source.repository}) from the Hugging Face hub"
        raise InputError(f"cannot download {where} ({reason}); a working connection to it is needed") from error
    images = from_hub_splits(name, train, test)
    folder = destination / name
    with file_errors(folder, "; a writable folder is needed", action="written"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in (_idx_files if images.pixels.shape[1] == 1 else _cifar_files)(images):
            write_bytes(folder / file, content)
    return folder


def _hub_source(name: str) -> HubSource:
    sources = {key: source.hub for key, source in SOURCES.items() if source.hub is not None}
    require(name in sources, f"'{name}' is not on the hub; {nearest(name, sources)}")
    return sources[name]


def _read(name: str, source: HubSource, part: str, split: "Dataset") -> tuple[Tensor, Tensor]:
    """Pixels (n, C, H, W) uint8 and labels (n,) int64 of a split."""
    columns = split.column_names
    for column in (source.image, source.label):
        has = f"it has {quoted(columns)}"
        require(column in columns, f"'{name}' has no column '{column}' in its {part} split; {has}")
    require(len(split) > 0, f"'{name}' has zero images in its {part} split; at least 1 is needed")
    labels = np.array(split.with_format(None)[source.label][:])
    allowed = f"integers from 0 to {source.classes - 1}"
    require(
        labels.dtype.kind in "iu",
        f"'{name}' has labels of type {labels.dtype} in its {part} split; only {allowed} are allowed",
    )
    wrong = labels[(labels < 0) | (labels >= source.classes)]
    require(
        not len(wrong), f"'{name}' has label {wrong[:1].sum()} in its {part} split, a class it lacks; give {allowed}"
    )
    pixels: Tensor | None = None
    for i, image in enumerate(_images(split, source.image)):
        require(image.mode == source.mode, f"'{name}' has an image of mode {image.mode}; it must be {source.mode}")
        values = torch.from_numpy(np.array(image)).reshape(image.height, image.width, -1).permute(2, 0, 1)
        if pixels is None:
            pixels = torch.empty((len(split), *values.shape), dtype=torch.uint8)
        same = values.shape == pixels.shape[1:]
        require(same, f"'{name}' has images of {size_of(values)} and {size_of(pixels)} pixels; all must be of one size")
        pixels[i] = values
    assert pixels is not None
    return pixels, torch.from_numpy(labels.astype(np.int64))


def _images(split: "Dataset", column: str) -> Iterator[Any]:
    """The images of a split, decoded one after another."""
    try:
        for row in split.with_format(None).select_columns([column]):
            yield row[column]  # pyright: ignore[reportCallIssue, reportArgumentType]
    except ImportError as error:
        raise InputError("images from the hub need Pillow: pip install 'shoal[hub]'") from error
    except OSError as error:
        raise InputError(f"column '{column}' has a damaged image ({error}); fetch the set again") from error


def _idx_files(images: ImageDataset) -> Iterator[tuple[str, bytes]]:
    emnist = images.name == "emnist-byclass"
    prefix, test = ("emnist-byclass-", "test") if emnist else ("", "t10k")
    pixels = images.pixels[:, 0].transpose(1, 2) if emnist else images.pixels[:, 0]
    for part, rows in (("train", slice(images.train_count)), (test, slice(images.train_count, None))):
        for what, content in (("images-idx3", pixels[rows]), ("labels-idx1", images.labels[rows])):
            header = bytes([0, 0, 8, content.dim()]) + np.array(content.shape, ">u4").tobytes()
            yield f"{prefix}{part}-{what}-ubyte", header + _bytes(content)


def _cifar_files(images: ImageDataset) -> Iterator[tuple[str, bytes]]:
    records = torch.cat([images.labels[:, None].to(torch.uint8), images.pixels.flatten(1)], dim=1)
    cut = images.train_count
    parts = [*torch.tensor_split(records[:cut], 5), records[cut:]]
    return ((name, _bytes(part)) for name, part in zip(BATCHES, parts, strict=True))


def _bytes(content: Tensor) -> bytes:
    return content.to(torch.uint8).contiguous().numpy().tobytes()
