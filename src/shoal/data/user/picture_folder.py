"""Pictures of clients: a folder ``client/class/picture.png``, or a CSV file that names them."""

import os
from collections.abc import Iterator, Sequence
from functools import partial
from operator import getitem
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.core.settings import settings
from shoal.data.sources.file_contents import read_pictures
from shoal.data.user.arrays import grey_or_rgb
from shoal.data.user.client_dataset import ClientDataset
from shoal.data.user.table_file import read_csv
from shoal.data.user.table_rows import require_columns, require_named

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_BILINEAR = 2  # Pillow's filter


def _height_and_width(size: tuple[int, ...]) -> tuple[int, ...]:
    if len(size) != 2:
        raise ValueError("two integers, [height, width]")
    return size


@settings
class PictureFormat:
    """The form of every picture after reading.

    Args:
        size: [height, width] in pixels to which every picture is resized (bilinear, without keeping its proportions);
            None: all have one size already.
        channels: 1: grey; 3: RGB. None: 3 where a picture has colours, else 1.

    Raises:
        InputError: a value outside its range.
    """

    size: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, le=10_000, strict=True)], ...],
            Field(strict=False),
            AfterValidator(_height_and_width),
        ]
        | None
    ) = None
    channels: Literal[1, 3] | None = None


class _Picture(NamedTuple):
    path: Path
    client: str
    label: str
    group: str | None = None


def load_folder(path: Path, form: PictureFormat) -> ClientDataset:
    """The pictures of a folder ``path/client/class/picture.png``, or of a CSV file of pictures.

    The CSV file has the columns ``client``, ``class``, ``path`` (from the file's folder on) and, where clients have
    groups, ``group``. Names that begin with a dot are ignored, and so are files beside the folders of clients or
    classes that are not pictures. The order in which the system lists files changes nothing.

    Raises:
        InputError: no picture, one of no client or no class, one that cannot be read, different sizes without
            ``form.size``, or no Pillow.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> from shoal.data import PictureFormat, load_folder
        >>> with TemporaryDirectory() as folder:
        ...     for name in ("anna/cat", "anna/dog", "ben/cat"):
        ...         Path(folder, name).mkdir(parents=True)
        ...         Image.new("L", (8, 8)).save(Path(folder, name, "1.png"))
        ...     data = load_folder(Path(folder), PictureFormat())
        ...
        >>> data.client_names, data.class_names, tuple(data.x.shape)
        (('anna', 'ben'), ('cat', 'dog'), (3, 1, 8, 8))
    """
    pictures = list(_in_folder(path) if path.is_dir() else _in_csv(path))
    require(
        bool(pictures),
        f"'{path}' has no pictures; they are expected as client/class/picture.png, or named by a CSV file",
    )
    paths, clients, labels, groups = zip(*pictures, strict=True)
    within = path if path.is_dir() else path.parent
    return ClientDataset.from_names(
        f"'{path}'",
        _decoded(paths, form),
        clients=clients,
        labels=labels,
        groups=None if groups[0] is None else groups,
        origin=partial(getitem, tuple(os.path.relpath(picture, within) for picture in paths)),
    )


def _in_folder(folder: Path) -> Iterator[_Picture]:
    for client in _children(folder, "client"):
        for label in _children(client, "class"):
            for picture in _listed(label):
                readable = picture.is_file() and picture.suffix.lower() in SUFFIXES
                require(
                    readable, f"'{picture}' is not a picture; a folder of a class holds {', '.join(SUFFIXES)} alone"
                )
                yield _Picture(picture, client.name, label.name)


def _children(folder: Path, level: str) -> Iterator[Path]:
    """The folders in a folder; a picture beside them is an error."""
    for path in _listed(folder):
        if path.is_dir():
            yield path
        else:
            beside = path.suffix.lower() in SUFFIXES
            require(not beside, f"'{path}' is a picture of no {level}; it belongs into a folder client/class")


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except OSError as error:
        raise InputError(f"'{folder}' cannot be read: {error.strerror}; a readable folder is needed") from error


def _in_csv(path: Path) -> Iterator[_Picture]:
    columns = ("path", "client", "class", "group")
    table = read_csv(path, columns)
    require_columns(f"'{path}'", table, columns[:3])
    used = [column for column in columns if column in table]
    for column in used:
        require_named(f"'{path}'", table[column])
    rows: dict[str, int] = {}
    for row, (file, *names) in enumerate(table[used].itertuples(index=False), start=1):
        place = os.path.normpath(path.parent / file)
        # Of two copies one could be trained on and the other be a non-member.
        require(place not in rows, f"'{path}' names '{file}' in the rows {rows.get(place)} and {row}; once is allowed")
        rows[place] = row
        yield _Picture(path.parent / file, *names)


def _decoded(paths: Sequence[Path], form: PictureFormat) -> Tensor:
    """The pictures (M, C, H, W) uint8, in the order of the paths."""
    images = read_pictures(paths, _FORMATS, partial(_pixels, form))
    sizes: dict[tuple[int, ...], Path] = {}
    for path, image in zip(paths, images, strict=True):
        sizes.setdefault(image.shape[:2], path)
    spelled = [f"{height}x{width} ('{path}')" for (height, width), path in sizes.items()]
    require(
        len(sizes) == 1,
        f"the pictures have different sizes, such as {' and '.join(spelled[:2])}; set 'size' = [height, width]",
    )
    channels = max(image.shape[2] for image in images)
    images = [image if image.shape[2] == channels else image.repeat(channels, axis=2) for image in images]
    return torch.from_numpy(np.stack(images).transpose(0, 3, 1, 2).copy())


def _pixels(form: PictureFormat, picture: "Image") -> np.ndarray:
    """One picture (H, W, C) uint8, upright as its camera says, without transparency."""
    from PIL import ImageOps  # noqa: PLC0415 - Pillow is an extra

    upright = grey_or_rgb(ImageOps.exif_transpose(picture), form.channels)
    if form.size is not None:
        height, width = form.size
        upright = upright.resize((width, height), _BILINEAR)
    return np.atleast_3d(np.asarray(upright))
