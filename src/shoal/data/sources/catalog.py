"""The catalog of data sources: where each is looked for, how it is read, how to get it."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import platformdirs

from shoal.core.errors import InputError, nearest, path_of, quoted, require
from shoal.data.datasets import ImageDataset, LabelledDataset
from shoal.data.sources import synthetic_faces, synthetic_reviews
from shoal.data.sources.cifar10 import find_cifar10, load_cifar10
from shoal.data.sources.digits import digits_file, load_sklearn_digits
from shoal.data.sources.idx import count_idx_images, idx_files, load_idx_folder
from shoal.data.sources.lfw import count_lfw, find_lfw, load_lfw
from shoal.data.sources.stroke_properties import with_stroke_property
from shoal.data.sources.yelp import count_yelp, find_yelp, load_yelp

_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_IDX = f"{quoted(_FILES)} (plain or .gz)"
_EMNIST_IDX = _IDX.replace("t10k", "test").replace("'t", "'emnist-byclass-t")


@dataclass(frozen=True)
class Availability:
    """The state of a source on this machine."""

    name: str
    path: Path | None
    """The folder or file it would be read from; None if it is not here (or needs a path)."""
    size: str
    """Number and size of the images or texts that are here, such as ``"70,000 of 28x28"``, or what is wrong with them;
    those of the official set where none are here."""
    instructions: str
    """How to get it."""


@dataclass(frozen=True)
class _Source:
    """A source that is kept in files; size and instructions as in `Availability`."""

    size: str
    instructions: str
    find: Callable[[Path], Path | None]  # its path in a folder
    load: Callable[[Path, str | None], LabelledDataset]  # from a path, with a task
    torchvision: str = ""  # its folder in torchvision's layout
    system: tuple[Path, ...] = ()  # where a package manager installs it
    count: Callable[[Path], str] | None = None  # number and size of what is at a path; None: never found


def _idx_folder(folder: Path, prefixed: bool = False) -> Path | None:
    return folder if idx_files(folder, prefixed) else None


def _idx(name: str, classes: int | None, transposed: bool = False) -> Callable[[Path, str | None], ImageDataset]:
    return lambda path, task: with_stroke_property(load_idx_folder(path, name, classes, transposed), task)


def _count_cifar10(path: Path) -> str:
    return f"{len(load_cifar10(path).labels):,} of 32x32"


def _cifar10(path: Path, task: str | None) -> ImageDataset:
    require(task is None, f"data source 'cifar10' has no tasks; got the task '{task}'")
    return load_cifar10(path)


def _instructions(name: str, files: str, package: str = "") -> str:
    return (
        f"run {package}'shoal data --fetch {name}' (needs pip install 'shoal[hub]'), or put the official {files} "
        "into a folder that --data-dir or SHOAL_DATA names"
    )


_SOURCES: dict[str, _Source] = {
    "mnist": _Source(
        "70,000 of 28x28",
        _instructions("mnist", _IDX),
        _idx_folder,
        _idx("mnist", 10),
        "MNIST/raw",
        count=count_idx_images,
    ),
    "fashion-mnist": _Source(
        "70,000 of 28x28",
        _instructions("fashion-mnist", _IDX, "'apt-get install dataset-fashion-mnist' or "),
        _idx_folder,
        _idx("fashion-mnist", 10),
        "FashionMNIST/raw",
        (Path("/usr/share/datasets/fashion-mnist"),),  # Debian's package
        count_idx_images,
    ),
    "emnist-byclass": _Source(
        "814,255 of 28x28",
        _instructions("emnist-byclass", _EMNIST_IDX),
        partial(_idx_folder, prefixed=True),
        _idx("emnist-byclass", 62, transposed=True),
        "EMNIST/raw",
        count=partial(count_idx_images, prefixed=True),
    ),
    "cifar10": _Source(
        "60,000 of 32x32",
        _instructions("cifar10", "'cifar-10-binary.tar.gz'"),
        find_cifar10,
        _cifar10,
        count=_count_cifar10,
    ),
    "lfw": _Source(
        "13,143 of 62x47",
        "put the official lfw-funneled.tgz, unpacked, and lfw_attributes.txt into a folder that --data-dir or "
        "SHOAL_DATA names (reading them needs pip install 'shoal[images]')",
        find_lfw,
        load_lfw,
        count=count_lfw,
    ),
    "yelp": _Source(
        "texts by 10 authors",
        "put the official Yelp Open Dataset's yelp_academic_dataset_review.json, plain or .gz, into a folder that "
        "--data-dir or SHOAL_DATA names",
        find_yelp,
        load_yelp,
        count=count_yelp,
    ),
    "idx": _Source("any", f"give the folder with your own {_IDX} as its path", lambda _: None, _idx("idx", None)),
}
_WITHOUT_FILES: dict[str, Callable[[str | None], LabelledDataset]] = {
    "digits": lambda task: with_stroke_property(load_sklearn_digits(), task),
    "faces": synthetic_faces.generate_faces,
    "reviews": synthetic_reviews.generate_reviews,
}
_OF_CLIENTS = {
    "folder": (
        "your pictures",
        "name a folder client/class/picture.png, or a CSV file of pictures, as data.path of a configuration (reading "
        "them needs pip install 'shoal[images]')",
    ),
    "table": (
        "your rows",
        "name a CSV or Parquet file with a client column as data.path of a configuration (Parquet needs pip install "
        "'shoal[parquet]')",
    ),
}
"""Sources whose clients have their examples already, and that `load_dataset` does not load: size and instructions."""

_NOT_IMAGES = {"reviews": "texts", "yelp": "texts", "table": "rows"}

_NAMES = (*_WITHOUT_FILES, *_SOURCES)


def load_dataset(
    name: str, *, data_dir: Path | None = None, path: Path | None = None, task: str | None = None
) -> LabelledDataset:
    """Find and read a source.

    Without a path it is looked for in ``data_dir`` (else in the folder that the environment variable
    ``SHOAL_DATA`` names): its sub-folder of that name, torchvision's layout, the folder itself. Then in the user's
    cache, then where Debian installs it. MNIST and Fashion-MNIST have the same file names, so a folder that directly
    contains such files counts as either.

    Args:
        name: ``digits``, ``faces``, ``mnist``, ``fashion-mnist``, ``emnist-byclass``, ``cifar10``, ``lfw``, ``idx``
            (any folder in MNIST's format, which needs a path), or the texts ``reviews`` (synthetic) and ``yelp``.
        data_dir: a folder with one or more sets.
        path: the folder or archive of this source; no other place is tried then.
        task: main label and property, ``"MAIN/PROPERTY"`` or ``"MAIN"``. `generate_faces` and `load_lfw` list theirs
            and need one; grey images have ``class``, ``class/thick`` and ``class/slanted``, texts ``score`` and
            ``score/author-1`` to ``score/author-10``; ``cifar10`` has none.

    Raises:
        InputError: unknown name, not found, the files are damaged, or the source has no such task.

    Example:
        >>> from shoal import load_dataset
        >>> len(load_dataset("digits").labels)
        1797
    """
    require(
        name not in _OF_CLIENTS,
        f"data source '{name}' has clients with examples of their own, and is of configurations and `load_{name}`",
    )
    path = None if path is None else path_of("path", path)
    require(name in _NAMES, f"unknown data source '{name}'; {nearest(name, (*_NAMES, *_OF_CLIENTS))}")
    if name in _WITHOUT_FILES:
        how = "comes with scikit-learn" if name == "digits" else "is generated"
        require(path is None, f"data source '{name}' {how} and takes no path; got '{path}'")
        return _WITHOUT_FILES[name](task)
    source = _SOURCES[name]
    if path is not None:
        path = path.expanduser()
        require(
            path.exists(), f"data source '{name}' has the path '{path}', which does not exist; {source.instructions}"
        )
        return source.load(path, task)
    require(name != "idx", f"data source 'idx' needs a path; {source.instructions}")
    path = _find(name, data_dir)
    if path is None:
        tried = quoted(map(str, _folders(name, data_dir)))
        raise InputError(
            f"data source '{name}' is not on this machine: looked in {tried}; to get it, {source.instructions}"
        )
    return source.load(path, task)


def kind_of(name: str) -> str:
    """What the examples of a source are, in the plural: images, texts, rows, or just examples of a user's own source.

    >>> kind_of("digits"), kind_of("yelp"), kind_of("table"), kind_of("mine:load")
    ('images', 'texts', 'rows', 'examples')
    """
    return "examples" if ":" in name else _NOT_IMAGES.get(name, "images")


def availability(data_dir: Path | None) -> list[Availability]:
    """Where `load_dataset` would find each source with this ``data_dir``, and how many examples are there.

    Raises:
        InputError: ``data_dir`` is no folder.

    Example:
        >>> from shoal.data import availability
        >>> sizes = {each.name: each.size for each in availability(None)}
        >>> sizes["digits"], sizes["table"]
        ('1,797 of 8x8', 'your rows')
    """
    here = data_dir is None or data_dir.expanduser().is_dir()
    require(here, f"'--data-dir' (or SHOAL_DATA) must be a folder; '{data_dir}' is none")
    return [
        Availability("digits", digits_file(), "1,797 of 8x8", "it comes with scikit-learn"),
        Availability("faces", Path(synthetic_faces.__file__), "6,000 of 62x47", "they are generated"),
        Availability("reviews", Path(synthetic_reviews.__file__), "8,000 texts", "they are generated"),
        *(_availability(name, source, _find(name, data_dir)) for name, source in _SOURCES.items()),
        *(Availability(name, None, *words) for name, words in _OF_CLIENTS.items()),
    ]


def _availability(name: str, source: _Source, path: Path | None) -> Availability:
    size = source.size
    if path is not None and source.count is not None:
        try:
            size = source.count(path)
        except InputError as error:
            size = f"damaged: {error}"
    return Availability(name, path, size, source.instructions)


def user_cache() -> Path:
    """The user's cache of data sets, where fetched sets are kept, each in a folder of its name; it may not exist."""
    return platformdirs.user_cache_path("shoal")


def _find(name: str, data_dir: Path | None) -> Path | None:
    paths = (_SOURCES[name].find(folder) for folder in _folders(name, data_dir))
    return next((path for path in paths if path is not None), None)


def _folders(name: str, data_dir: Path | None) -> Iterator[Path]:
    """The folders in which a source is looked for, in order."""
    source = _SOURCES[name]
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
