"""The catalog of data sources: the search, reading and download of each data set."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
import torch
from numpy.typing import NDArray

from shoal.core.atomic_files import write_bytes
from shoal.core.entry_points import installed_names
from shoal.core.errors import InputError, escape_text, file_errors, path_of, quote, require, search_place, suggest
from shoal.data.datasets import ImageDataset, LabelledDataset
from shoal.data.sources.idx import BATCHES, count_idx_images, find_cifar10, idx_files, load_cifar10, load_idx_folder
from shoal.data.sources.named_tables import INSTALL, NAMED_TABLES
from shoal.data.sources.tasks import (
    count_lfw,
    count_yelp,
    find_lfw,
    find_yelp,
    load_lfw,
    load_yelp,
    with_stroke_property,
)

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_IDX = f"{quote(_FILES)} (plain or .gz)"
_EMNIST_IDX = _IDX.replace("t10k", "test").replace("'t", "'emnist-byclass-t")
_ANY_FOLDER = "into a folder that --data-dir or SHOAL_DATA names"


@dataclass(frozen=True)
class HubSource:
    """A data set on the Hugging Face hub, with the names of its columns of images and class numbers."""

    repository: str
    image: str
    label: str
    classes: int
    shape: tuple[int, ...] = (28, 28)
    splits: tuple[str, ...] = ("train", "test")


@dataclass(frozen=True)
class Source:
    """A data source.

    Args:
        size: the number and size of the official examples.
        instructions: how to get the data.
        load: a function that reads the data of a task from a path; None if each example already has a client.
        find: a function that finds the data in a folder, or None if no folder is searched.
        shipped_file: a function that returns the data file of an installed package, for a source without a path.
        count: a function that returns the number and size of the examples at a path.
        torchvision: the data's folder in torchvision's layout.
        system: the folders into which a package manager installs the data.
        kind: a plural noun for the examples.
        hub: the data set on the Hugging Face hub, or None if the hub does not have the data set.
    """

    size: str
    instructions: str
    load: Callable[[Path, str | None], LabelledDataset] | None = None
    find: Callable[[Path], Path | None] | None = None
    shipped_file: Callable[[], Path | None] | None = None
    count: Callable[[Path], str] | None = None
    torchvision: str = ""
    system: tuple[Path, ...] = ()
    kind: str = "images"
    hub: HubSource | None = None


@dataclass(frozen=True)
class Availability:
    """The availability of a source on this machine.

    Args:
        name: the name of the source.
        path: the path of the data, or None if the data are missing or the source needs a path.
        size: the number and size of the examples, such as ``"70,000 of 28x28"``, or an error.
        instructions: how to get the data.
    """

    name: str
    path: Path | None
    size: str
    instructions: str


def load_sklearn_digits() -> ImageDataset:
    """Load 1,797 handwritten digits of 8x8 pixels in 17 shades, without an official split.

    Source: the test split of Alpaydin and Kaynak, "Optical recognition of handwritten digits" (UCI, 1998), from
    scikit-learn.
    """
    # The file itself: to load scikit-learn takes a second of processor time.
    rows = torch.from_numpy(np.loadtxt(_digits_file(), delimiter=",", dtype=np.uint8))
    return ImageDataset("digits", rows[:, :-1].contiguous().reshape(-1, 1, 8, 8), 16, rows[:, -1].long(), len(rows), 10)


def _digits_file() -> Path:
    spec = find_spec("sklearn")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"


def _idx(name: str, classes: int | None, transposed: bool = False) -> Callable[[Path, str | None], ImageDataset]:
    return lambda path, task: with_stroke_property(load_idx_folder(path, name, classes, transposed), task)


def _idx_folder(folder: Path, prefixed: bool = False) -> Path | None:
    return folder if idx_files(folder, prefixed) else None


def _cifar10(path: Path, task: str | None) -> ImageDataset:
    require(task is None, f"'task' is not allowed for data source 'cifar10' (got '{task}'); remove 'task'")
    return load_cifar10(path)


def _instructions(name: str, files: str, package: str = "") -> str:
    return (
        f"run {package}'shoal data --fetch {name}' (needs pip install 'shoal[hub]'), or put the official {files} "
        f"{_ANY_FOLDER}"
    )


SOURCES: dict[str, Source] = {
    "digits": Source(
        "1,797 of 8x8",
        "it comes with scikit-learn",
        lambda _, task: with_stroke_property(load_sklearn_digits(), task),
        shipped_file=_digits_file,
    ),
    "mnist": Source(
        "70,000 of 28x28",
        _instructions("mnist", _IDX),
        _idx("mnist", 10),
        _idx_folder,
        count=count_idx_images,
        torchvision="MNIST/raw",
        hub=HubSource("ylecun/mnist", "image", "label", 10),
    ),
    "fashion-mnist": Source(
        "70,000 of 28x28",
        _instructions("fashion-mnist", _IDX, "'apt-get install dataset-fashion-mnist' or "),
        _idx("fashion-mnist", 10),
        _idx_folder,
        count=count_idx_images,
        torchvision="FashionMNIST/raw",
        system=(Path("/usr/share/datasets/fashion-mnist"),),  # Debian's package
        hub=HubSource("zalando-datasets/fashion_mnist", "image", "label", 10),
    ),
    "emnist-byclass": Source(
        "814,255 of 28x28",
        _instructions("emnist-byclass", _EMNIST_IDX),
        _idx("emnist-byclass", 62, transposed=True),
        partial(_idx_folder, prefixed=True),
        count=partial(count_idx_images, prefixed=True),
        torchvision="EMNIST/raw",
        hub=HubSource("flwrlabs/femnist", "image", "character", 62, splits=("train",)),
    ),
    "cifar10": Source(
        "60,000 of 32x32",
        _instructions("cifar10", "'cifar-10-binary.tar.gz'"),
        _cifar10,
        find_cifar10,
        count=lambda path: f"{len(load_cifar10(path).labels):,} of 32x32",
        hub=HubSource("uoft-cs/cifar10", "img", "label", 10, (32, 32, 3)),
    ),
    "lfw": Source(
        "13,143 of 62x47",
        f"put the official lfw-funneled.tgz, unpacked, and lfw_attributes.txt {_ANY_FOLDER} (reading them needs pip "
        "install 'shoal[images]')",
        load_lfw,
        find_lfw,
        count=count_lfw,
    ),
    "yelp": Source(
        "texts by 10 authors",
        f"put the official Yelp Open Dataset's yelp_academic_dataset_review.json, plain or .gz, {_ANY_FOLDER}",
        load_yelp,
        find_yelp,
        count=count_yelp,
        kind="texts",
    ),
    "idx": Source("any", f"set 'path' to the folder with your own {_IDX}", _idx("idx", None)),
    "folder": Source(
        "your pictures",
        "name a folder client/class/picture.png, or a CSV file of pictures, as data.path of a configuration (reading "
        "them needs pip install 'shoal[images]')",
    ),
    "table": Source(
        "your rows",
        "name a CSV or Parquet file with a client column as data.path of a configuration (Parquet needs pip install "
        "'shoal[parquet]')",
        kind="rows",
    ),
    **{
        name: Source(table.size, f"run {INSTALL}; {table.source}", shipped_file=table.file, kind="rows")
        for name, table in NAMED_TABLES.items()
    },
}


def load_dataset(
    name: str, *, data_dir: Path | None = None, path: Path | None = None, task: str | None = None
) -> LabelledDataset:
    """Find and read a data set.

    Without ``path``, the search goes through ``data_dir`` or the folder in ``SHOAL_DATA``, the user's cache, and
    Debian's folder. In ``data_dir``, the sub-folder of the data set's name comes first, then torchvision's layout, then
    ``data_dir`` itself. Files of MNIST and Fashion-MNIST have equal names, so files in ``data_dir`` itself count as
    either data set.

    Args:
        name: ``digits``, ``mnist``, ``fashion-mnist``, ``emnist-byclass``, ``cifar10``, ``lfw``, ``yelp``, or ``idx``
            (a folder in MNIST's format, which requires ``path``).
        data_dir: a folder with one or more data sets.
        path: the folder or archive of this data set; no other place is searched.
        task: the main label and the property, ``"MAIN/PROPERTY"`` or ``"MAIN"``. Grey images have ``class``,
            ``class/thick`` and ``class/slanted``; ``yelp`` has ``score`` and ``score/author-1`` to ``score/author-10``;
            ``lfw`` requires a task; ``cifar10`` allows none.

    Raises:
        InputError: the name is unknown, the data set is not found, a file is damaged, or the data set lacks the task.

    Example:
        >>> from shoal import load_dataset
        >>> len(load_dataset("digits").labels)
        1797
    """
    path = None if path is None else path_of("path", path).expanduser()
    require(name in SOURCES, f"the data source is unknown (got '{name}'); {suggest(name, SOURCES)}")
    source = SOURCES[name]
    if source.load is None:
        raise InputError(
            f"data source '{name}' cannot be read by `load_dataset`; set 'data.source' in a configuration, or call "
            "`load_folder` or `load_table`"
        )
    if source.shipped_file is not None:
        require(path is None, f"'path' is not allowed for data source '{name}' (got '{path}'); remove 'path'")
        shipped = source.shipped_file()
        assert shipped is not None
        return source.load(shipped, task)
    if path is not None:
        require(
            path.exists(),
            f"'path' of data source '{name}' does not exist (got '{escape_text(path)}'){search_place(path)}; "
            f"{source.instructions}",
        )
        return source.load(path, task)
    require(source.find is not None, f"'path' of data source '{name}' is missing; {source.instructions}")
    path = _find(name, data_dir)
    if path is None:
        tried = quote(map(str, _folders(name, data_dir)))
        raise InputError(f"data source '{name}' was not found in {tried}; {source.instructions}")
    return source.load(path, task)


def example_kind(name: str) -> str:
    """Return a plural noun for a source's examples, such as images, texts or rows; "examples" for an unknown source."""
    return SOURCES[name].kind if name in SOURCES else "examples"


def availability(data_dir: Path | None) -> list[Availability]:
    """List the availability of each source for `load_dataset` in ``data_dir``.

    Raises:
        InputError: ``data_dir`` is not a folder.
    """
    here = data_dir is None or data_dir.expanduser().is_dir()
    require(here, f"'--data-dir' or SHOAL_DATA must be a folder (got '{data_dir}')")
    added = [
        Availability(name, None, "from an installed package", f"'{code}'; may need a 'path'")
        for name, code in installed_names("shoal.sources", SOURCES).items()
    ]
    return [_availability(name, source, data_dir) for name, source in SOURCES.items()] + added


def _availability(name: str, source: Source, data_dir: Path | None) -> Availability:
    path = source.shipped_file() if source.shipped_file is not None else _find(name, data_dir)
    size = source.size
    if path is not None and source.count is not None:
        try:
            size = source.count(path)
        except InputError as error:
            size = f"damaged: {error}"
    return Availability(name, path, size, source.instructions)


def user_cache() -> Path:
    """Return the user's cache of downloaded data sets, a folder that may not exist yet."""
    return platformdirs.user_cache_path("shoal")


def _find(name: str, data_dir: Path | None) -> Path | None:
    find = SOURCES[name].find
    if find is None:
        return None
    return next((path for folder in _folders(name, data_dir) if (path := find(folder)) is not None), None)


def _folders(name: str, data_dir: Path | None) -> Iterator[Path]:
    """Yield the folders to search for a source, in order."""
    source = SOURCES[name]
    variable = os.environ.get("SHOAL_DATA", "")
    if data_dir is None and variable:
        data_dir = Path(variable)
    if data_dir is not None:
        data_dir = path_of("data_dir", data_dir).expanduser()
        yield data_dir / name
        if source.torchvision:
            yield data_dir / source.torchvision
        yield data_dir
    yield user_cache() / name
    yield from source.system


def fetch(name: str, destination: Path) -> Path:
    """Download a data set, and save it in its official format in the folder ``destination / name``.

    Grey images become IDX files, and CIFAR-10 becomes binary batches. Files are written atomically. `load_dataset`
    finds the data set with ``data_dir=destination``.

    EMNIST on the hub is LEAF's FEMNIST, which has no test split, so the test files are empty. FEMNIST's dark ink on
    white is inverted to EMNIST's light ink on black.

    Raises:
        InputError: the data set is unknown, the extra is not installed, the download fails, the hub's images or labels
            have an unexpected format, or the folder cannot be written.
    """
    sources = {key: source.hub for key, source in SOURCES.items() if source.hub is not None}
    require(name in sources, f"data source '{name}' cannot be downloaded; {suggest(name, sources)}")
    source = sources[name]
    where = f"'{name}' ({source.repository}) from the Hugging Face hub"
    try:
        from datasets import load_dataset  # noqa: PLC0415 - an extra, and slow to import

        # split= picks one Dataset, which the declared return type does not know.
        splits: list[Any] = [load_dataset(source.repository, split=split) for split in source.splits]
        columns = [split.select_columns([source.image, source.label]).with_format("numpy") for split in splits]
        batches = [batch for split in columns for batch in split.iter(10_000)]
    except ImportError as error:
        raise InputError(
            f"Hugging Face's datasets, which downloads '{name}', is not installed; run pip install 'shoal[hub]'"
        ) from error
    except Exception as error:  # whatever the network, the hub or its libraries raise, the user's answer is the same
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise InputError(f"{where} cannot be downloaded ({reason}); check the network connection") from error
    images, labels = ([batch[column] for batch in batches] for column in (source.image, source.label))
    require(
        all(len(split) for split in splits)
        # Images of several sizes are an array of objects.
        and all(part.dtype == np.uint8 and part.shape[1:] == source.shape for part in images)
        and all(np.isin(part, range(source.classes)).all() for part in labels),
        f"{where} must have images of shape {source.shape} and labels from 0 to {source.classes - 1}",
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
    """Convert images (M, H, W) or (M, H, W, 3) and labels (M,), training split first, to the official files."""
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
