"""Labeled Faces in the Wild: real faces with attributes, for property inference (needs the extra ``shoal[images]``).

Sources: Huang, Ramesh, Berg, Learned-Miller, "Labeled Faces in the Wild" (2007), funneled; the attribute scores of
Kumar, Berg, Belhumeur, Nayar, "Attribute and simile classifiers for face verification" (ICCV 2009), one real number
per attribute, above 0 where it is likely present. The labels are those of Melis, Song, De Cristofaro, Shmatikov,
"Exploiting unintended feature leakage in collaborative learning" (S&P 2019), the crops scikit-learn's.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from shoal.core.errors import InputError, quote, require
from shoal.data.datasets import ImageDataset
from shoal.data.sources.file_contents import read_pictures
from shoal.data.sources.tasks import read_task

if TYPE_CHECKING:
    from PIL.Image import Image

FILE = "lfw_attributes.txt"
FOLDERS = ("lfw_funneled", "lfw", "lfw-deepfunneled")
_SIZE, _BOX, _SMALL = (250, 250), (78, 70, 172, 195), (47, 62)  # width and height; left, top, right, bottom
_MIN_SCORE = -0.1  # a face whose largest of several scores is below this has no class


# An attribute is the sign of one column (class 1 above 0), or the largest of several columns.
_SMILE, _GENDER, _RACE = ("Smiling",), ("Male",), ("Asian", "White", "Black")
_GLASSES = ("Eyeglasses", "Sunglasses", "No Eyewear")
_MAIN = {"smiling": _SMILE, "race": _RACE, "gender": _GENDER}
_PROPERTIES = {
    "sunglasses": (_GLASSES, 1),
    "eyeglasses": (_GLASSES, 0),
    "black": (_RACE, 2),
    "smiling": (_SMILE, 1),
    "male": (_GENDER, 1),
}
_CHOICES = {
    main: [name for name, (attribute, _) in _PROPERTIES.items() if attribute != label] for main, label in _MAIN.items()
}


def find_lfw(folder: Path) -> Path | None:
    """The folder itself if it has the attributes and a folder of images, else None."""
    return folder if (folder / FILE).is_file() and _image_folder(folder) is not None else None


def load_lfw(path: Path, task: str | None) -> ImageDataset:
    """The faces of a task, (M, 3, 62, 47), in the order of the attributes file, without a split.

    A score's sign decides ``smiling`` and ``gender`` (1: male); the largest score decides ``race`` (0 Asian, 1 white,
    2 black) and the glasses (eyeglasses, sunglasses, none), and a face whose largest is below -0.1 is left out. The
    image is the middle of the original, rows 70 to 195 and columns 78 to 172, at half size.

    Args:
        path: folder with ``lfw_attributes.txt`` and ``lfw_funneled`` (or ``lfw``, ``lfw-deepfunneled``), which has one
            folder per person.
        task: ``"MAIN"`` or ``"MAIN/PROPERTY"``: main labels ``smiling``, ``race`` (3 classes), ``gender``;
            properties ``sunglasses``, ``eyeglasses``, ``black``, ``smiling``, ``male``, of another attribute.

    Raises:
        InputError: no such task, files that are missing or damaged, or no Pillow.
    """
    main, name = read_task(task, "lfw", _CHOICES)
    attributes = [_MAIN[main]] if name is None else [_MAIN[main], _PROPERTIES[name][0]]
    folder = _image_folder(path)
    if folder is None:
        raise InputError(f"'{path}' has no folder of images; LFW's are in one of {quote(FOLDERS)}")
    files, scores = _read_scores(path / FILE, [column for attribute in attributes for column in attribute])
    labels, clear = _classes(scores[:, : len(attributes[0])])
    has_property = None
    if name is not None:
        classes, also_clear = _classes(scores[:, len(attributes[0]) :])
        clear &= also_clear
        has_property = torch.from_numpy((classes == _PROPERTIES[name][1])[clear])
    require(bool(clear.any()), f"'{path / FILE}' has no row whose scores for '{task}' are clear; at least 1 is needed")
    images = [folder / file for file, taken in zip(files, clear, strict=True) if taken]
    _require_images(images, path / FILE)
    pixels = torch.from_numpy(np.stack(read_pictures(images, ("JPEG",), _face)))
    labels = torch.from_numpy(labels[clear])
    return ImageDataset("lfw", pixels, 255, labels, len(labels), 3 if main == "race" else 2, has_property)


def count_lfw(path: Path) -> str:
    """The number and size of the images that the attributes file in a folder names.

    Raises:
        InputError: the file is damaged, or images are missing.
    """
    files, _ = _read_scores(path / FILE, [])
    folder = _image_folder(path) or path / FOLDERS[0]
    _require_images([folder / file for file in files], path / FILE)
    return f"{len(files):,} of {_SMALL[1]}x{_SMALL[0]}"


def _classes(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Classes (n,) of an attribute's scores (n, columns), and a mask (n,) of the rows that have one."""
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64), np.ones(len(scores), bool)
    return scores.argmax(1), scores.max(1) >= _MIN_SCORE


def _image_folder(folder: Path) -> Path | None:
    return next((folder / name for name in FOLDERS if (folder / name).is_dir()), None)


def _read_scores(path: Path, columns: list[str]) -> tuple[list[Path], np.ndarray]:
    """The image of each row, relative to the folder of images, and the scores (n, columns)."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing; LFW's attributes are needed for its labels") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' cannot be read ({error}); it must be LFW's file of attributes as text") from error
    # The official file has a comment before its header, and a "#" in it.
    table = [[cell.strip() for cell in line.removeprefix("#\t").split("\t")] for line in lines]
    start = next((i for i, cells in enumerate(table) if "person" in cells), 0)
    header, needed = table[start] if table else [], ["person", "imagenum", *columns]
    missing = quote(name for name in needed if name not in header)
    require(not missing, f"'{path}' lacks the columns {missing}; its header must name them, separated by tabs")
    rows = [(f"'{path}', line {start + i}", cells) for i, cells in enumerate(table[start + 1 :], 2) if any(cells)]
    require(len(rows) > 0, f"'{path}' has no rows; at least one face is needed")
    for where, cells in rows:
        require(len(cells) == len(header), f"{where}, has {len(cells)} columns; its header has {len(header)}")
    places = [header.index(name) for name in needed]
    files, scores = zip(*(_row([cells[place] for place in places], where) for where, cells in rows), strict=True)
    return list(files), np.array(scores, dtype=np.float64)


def _row(cells: list[str], where: str) -> tuple[Path, list[float]]:
    """The image file and the scores of one row."""
    person, number, *scores = cells
    folder = person.replace(" ", "_")
    plain = bool(folder) and folder not in {".", ".."} and "/" not in folder and "\\" not in folder
    require(
        plain and number.isdecimal() and len(number) < 9,
        f"{where}, has the image {number!r} of {person!r}; a person's name and an integer are needed",
    )
    try:
        values = [float(score) for score in scores]
    except ValueError as error:
        raise InputError(f"{where}, has a score that is not a number ({error}); only numbers are allowed") from error
    require(bool(np.isfinite(values).all()), f"{where}, has a score that is not finite; only numbers are allowed")
    return Path(folder) / f"{folder}_{int(number):04d}.jpg", values


def _require_images(paths: list[Path], attributes: Path) -> None:
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise InputError(
            f"{len(missing):,} of the {len(paths):,} images that '{attributes}' names are missing, the first "
            f"'{missing[0]}'; unpack the whole archive again"
        )


def _face(image: "Image") -> np.ndarray:
    """One image (3, 62, 47), cropped and resized as scikit-learn's fetch_lfw_people does (Pillow's bicubic)."""
    if image.size != _SIZE:
        raise ValueError(f"{image.size[0]}x{image.size[1]} pixels; LFW's images have {_SIZE[0]}x{_SIZE[1]}")
    return np.asarray(image.convert("RGB").crop(_BOX).resize(_SMALL)).transpose(2, 0, 1)
