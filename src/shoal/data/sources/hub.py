"""Download of data sets from the Hugging Face hub into their official formats (needs the extra ``shoal[hub]``)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.core.atomic_files import write_bytes
from shoal.core.errors import InputError, file_errors, require, suggest
from shoal.data.sources.catalog import SOURCES
from shoal.data.sources.cifar10 import BATCHES


def fetch(name: str, destination: Path) -> Path:
    """Download a set and keep it in its official format in the folder ``destination / name``.

    Grey sets become IDX files (EMNIST's transposed, as the official ones; the hub's version has no test split,
    so its test files are empty), CIFAR-10 binary batches. Each file is complete or absent. `load_dataset` finds the
    folder if ``destination`` is its data directory.

    LEAF's FEMNIST is dark ink on white, while EMNIST is light on black: an ``emnist-byclass`` that is mostly bright is
    inverted, so that both sources (and the black that a rotation brings in) agree.

    Raises:
        InputError: unknown set, the extra is not installed, the download fails, the hub has images or labels of another
            kind, or the folder cannot be written.
    """
    sources = {key: source.hub for key, source in SOURCES.items() if source.hub is not None}
    require(name in sources, f"'{name}' is not on the hub; {suggest(name, sources)}")
    source = sources[name]
    where = f"'{name}' ({source.repository}) from the Hugging Face hub"
    try:
        from datasets import load_dataset  # noqa: PLC0415 - an extra, and slow to import

        # split= picks one Dataset, which the declared return type does not know.
        splits: list[Any] = [load_dataset(source.repository, split=split) for split in source.splits]
        columns = [split.select_columns([source.image, source.label]).with_format("numpy") for split in splits]
        batches = [batch for split in columns for batch in split.iter(10_000)]
    except ImportError as error:
        raise InputError(f"fetching '{name}' needs Hugging Face's datasets: pip install 'shoal[hub]'") from error
    except Exception as error:  # whatever the network, the hub or its libraries raise, the user's answer is the same
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise InputError(f"cannot download {where} ({reason}); a working connection to it is needed") from error
    images, labels = ([batch[column] for batch in batches] for column in (source.image, source.label))
    require(
        all(len(split) for split in splits)
        # Images of several sizes are an array of objects.
        and all(part.dtype == np.uint8 and part.shape[1:] == source.shape for part in images)
        and all(np.isin(part, range(source.classes)).all() for part in labels),
        f"{where} must have images of shape {source.shape} and labels from 0 to {source.classes - 1} in each split",
    )
    pixels = np.concatenate(images)
    if name == "emnist-byclass" and pixels.mean() > 127.5:
        pixels = 255 - pixels
    folder = destination / name
    with file_errors(folder, "; a writable folder is needed", action="written"):
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in _files(name, pixels, np.concatenate(labels).astype(np.uint8), len(splits[0])):
            write_bytes(folder / file, content)
    return folder


def _files(
    name: str, pixels: NDArray[np.uint8], labels: NDArray[np.uint8], train_count: int
) -> Iterator[tuple[str, bytes]]:
    """Official files of images (M, H, W) or (M, H, W, 3) and labels (M,), the training split first."""
    if name == "cifar10":
        records = np.concatenate([labels[:, None], pixels.transpose(0, 3, 1, 2).reshape(len(labels), -1)], axis=1)
        batches = [*np.array_split(records[:train_count], 5), records[train_count:]]
        yield from ((file, batch.tobytes()) for file, batch in zip(BATCHES, batches, strict=True))
        return
    prefix, test = ("emnist-byclass-", "test") if name == "emnist-byclass" else ("", "t10k")
    pixels = pixels.transpose(0, 2, 1) if prefix else pixels
    for part, rows in (("train", slice(train_count)), (test, slice(train_count, None))):
        for what, content in (("images-idx3", pixels[rows]), ("labels-idx1", labels[rows])):
            header = bytes([0, 0, 8, content.ndim]) + np.array(content.shape, ">u4").tobytes()
            yield f"{prefix}{part}-{what}-ubyte", header + content.tobytes()
