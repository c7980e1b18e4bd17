"""Pictures of clients: a folder ``client/class/picture.png``, or a CSV file that names them."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import getitem
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.core.settings import settings
from shoal.data.sources.table import read_csv
from shoal.data.user.client_dataset import ClientDataset
from shoal.data.user.table_rows import require_columns, require_named

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_GREY = ("1", "L", "LA")  # Pillow's modes


def _height_and_width(size: tuple[int, ...]) -> tuple[int, ...]:
    if len(size) != 2:
        raise ValueError("two whole numbers, [height, width]")
    return size


@settings
class PictureFormat:
    """What every picture becomes.

    Args:
        size: [height, width] in pixels to which every picture is resized (bilinear, without keeping its proportions);
            None: all have one size already.
        channels: 1: grey; 3: RGB. None: 3 where a picture has colours, else 1.

    Raises:
        InputError: a value outside its range.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from PIL import Image
        >>> from shoal.data import PictureFormat, load_folder
        >>> with TemporaryDirectory() as folder:
        ...     for name, side in (("a", 8), ("b", 16)):
        ...         path = Path(folder, name, name)
        ...         path.mkdir(parents=True)
        ...         Image.new("L", (side, side)).save(path / "picture.png")
        ...     data = load_folder(Path(folder), PictureFormat(size=(4, 4), channels=3))
        ...
        >>> tuple(data.x.shape)
        (2, 3, 4, 4)
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


@dataclass(frozen=True)
class _Picture:
    path: Path
    client: str
    label: str
    group: str | None


def load_folder(path: Path, form: PictureFormat) -> ClientDataset:
    """The pictures of a folder ``path/client/class/picture.png``, or of a CSV file of pictures.

    The CSV file has the columns ``client``, ``class``, ``path`` (from the file's folder on) and, where clients have
    groups, ``group``. Names that begin with a dot are ignored, and so are files beside the folders of clients or
    classes that are no pictures. The order in which the system lists files changes nothing.

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
    within = path if path.is_dir() else path.parent
    groups = None if pictures[0].group is None else [str(each.group) for each in pictures]
    return ClientDataset.from_names(
        f"'{path}'",
        _decoded([each.path for each in pictures], form),
        clients=[each.client for each in pictures],
        labels=[each.label for each in pictures],
        groups=groups,
        origin=partial(getitem, tuple(os.path.relpath(each.path, within) for each in pictures)),
    )


def _in_folder(folder: Path) -> Iterator[_Picture]:
    for client in _children(folder, "of no client; it belongs into a folder client/class"):
        for label in _children(client, "of no class; it belongs into a folder client/class"):
            for picture in _listed(label):
                known = picture.is_file() and picture.suffix.lower() in SUFFIXES
                require(known, f"'{picture}' is no picture; a folder of a class holds {', '.join(SUFFIXES)} alone")
                yield _Picture(picture, client.name, label.name, None)


def _children(folder: Path, wrong: str) -> Iterator[Path]:
    """The folders in a folder; a picture beside them is an error."""
    for each in _listed(folder):
        if each.is_dir():
            yield each
        else:
            require(each.suffix.lower() not in SUFFIXES, f"'{each}' is a picture {wrong}")


def _listed(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if not each.name.startswith("."))
    except OSError as error:
        raise InputError(f"'{folder}' cannot be read: {error.strerror}; a readable folder is needed") from error


def _in_csv(path: Path) -> Iterator[_Picture]:
    table = read_csv(path, ("client", "class", "path", "group"))
    name = f"'{path}'"
    require_columns(name, table, ("client", "class", "path"))
    grouped = "group" in table
    for column in ("client", "class", "path", *(["group"] if grouped else [])):
        require_named(name, table[column])
    rows: dict[str, int] = {}
    groups: Sequence[str | None] = table["group"].tolist() if grouped else [None] * len(table)
    columns = (table["path"].tolist(), table["client"].tolist(), table["class"].tolist(), groups)
    for row, (file, client, label, group) in enumerate(zip(*columns, strict=True), start=1):
        place = os.path.normpath(path.parent / file)
        # Of two copies one could be trained on and the other be a non-member.
        require(place not in rows, f"'{path}' names '{file}' in the rows {rows.get(place)} and {row}; once is allowed")
        rows[place] = row
        yield _Picture(path.parent / file, client, label, group)


def _decoded(paths: Sequence[Path], form: PictureFormat) -> Tensor:
    """The pictures (M, C, H, W) uint8, decoded by several threads, in the order of the paths."""
    try:
        from PIL import Image  # noqa: F401, PLC0415 - Pillow is an extra
    except ImportError as error:
        raise InputError("data source 'folder' reads pictures with Pillow: pip install 'shoal[images]'") from error
    with ThreadPoolExecutor() as threads:
        images = list(threads.map(lambda path: _picture(path, form), paths))
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


def _picture(path: Path, form: PictureFormat) -> np.ndarray:
    """One picture (H, W, C) uint8, upright as its camera says, without transparency."""
    from PIL import Image, ImageOps  # noqa: PLC0415 - Pillow is an extra

    try:
        with Image.open(path, formats=_FORMATS) as opened:
            deep = opened.mode.startswith(("I", "F"))
            mode = opened.mode
            channels = form.channels or (1 if mode in _GREY else 3)
            image = ImageOps.exif_transpose(opened).convert("L" if channels == 1 else "RGB")
            if form.size is not None:
                height, width = form.size
                image = image.resize((width, height), Image.Resampling.BILINEAR)
            pixels = np.atleast_3d(np.asarray(image))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        reason = " ".join(str(getattr(error, "strerror", None) or error).split())
        raise InputError(f"'{path}' cannot be read as a picture ({reason}); replace it, or leave it out") from error
    require(not deep, f"'{path}' has more than 8 bits a pixel (Pillow's mode {mode}); convert it to 8 bits")
    return pixels
