"""Data sets with a property to infer: images with strokes, faces with attributes, reviews with authors.

A task is ``"MAIN/PROPERTY"``, such as ``"smiling/sunglasses"``: the label to learn, and the property to infer. The
properties of grey images are the thickness and the slant of strokes; a fifth of the images in each class has the
property.

Sources of the faces (extra ``shoal[images]``): images from Labeled Faces in the Wild, Huang, Ramesh, Berg,
Learned-Miller (2007), funneled; attribute scores from Kumar, Berg, Belhumeur, Nayar (ICCV 2009); labels as in Melis,
Song, De Cristofaro, Shmatikov (S&P 2019); crops as in scikit-learn.

Source of the reviews by the ten most active authors of the Yelp Open Dataset: Kim et al., RAID 2023,
doi:10.1145/3607199.3607218, section 4.1.1. The authors' public code drops capitalised words and pads texts to the
longest text. Shoal converts words to lower case and cuts texts at `MAX_WORDS` words.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from shoal.core.errors import InputError, quote, require, suggest
from shoal.core.foreign_files import open_file, read_pictures
from shoal.data.datasets import ImageDataset, TextDataset

if TYPE_CHECKING:
    from PIL.Image import Image


AUTHORS = 10
"""The number of authors in a set of reviews; author 1 has the most reviews."""

AUTHOR_TASKS = ("score", *(f"score/author-{author}" for author in range(1, AUTHORS + 1)))
"""The tasks for reviews: the score, alone or with the property that a given author wrote the review."""

PROPERTY_SHARE = 0.2  # of each class
_BLOCK = 512  # images measured at a time


def read_task(task: str | None, source: str, choices: Mapping[str, Iterable[str]]) -> tuple[str, str | None]:
    """Split the task ``"MAIN/PROPERTY"`` or ``"MAIN"`` into the main label and the property (or None).

    ``choices`` maps each main label to the properties that may be combined with the label.

    Raises:
        InputError: the task is missing, the label or property is unknown, or the two cannot be combined.
    """
    if task is None:
        main, properties = next(iter(choices.items()))
        example = f"'{main}/{next(iter(properties))}' or '{main}'"
        raise InputError(
            f"'task' of data source '{source}' is missing; set a task such as {example} (main labels: {quote(choices)})"
        )
    main, slash, name = task.partition("/")
    require(main in choices, f"'task' of '{source}' has an unknown main label (got '{main}'); {suggest(main, choices)}")
    if not slash:
        return main, None
    known = {name for properties in choices.values() for name in properties}
    require(name in known, f"'task' of '{source}' has an unknown property (got '{name}'); {suggest(name, known)}")
    allowed = list(choices[main])
    require(
        name in allowed,
        f"'task' must combine two different attributes (got '{task}'); properties for '{main}' are {quote(allowed)}",
    )
    return main, name


def read_author_task(task: str | None, source: str) -> int | None:
    """Return the author in a task for reviews, counted from 0, or None if the task names no author.

    Raises:
        InputError: the task is not in `AUTHOR_TASKS`.
    """
    task = "score" if task is None else task
    require(task in AUTHOR_TASKS, f"'task' of '{source}' is unknown (got '{task}'); {suggest(task, AUTHOR_TASKS)}")
    author = task.partition("/author-")[2]
    return int(author) - 1 if author else None


def with_stroke_property(images: ImageDataset, task: str | None) -> ImageDataset:
    """Return a copy of ``images`` with the task's property in ``has_property``.

    In a class of n images, the ``round(n / 5)`` images with the largest `thickness` or `slant` have the property. The
    tasks are ``"class"`` or None, ``"class/thick"`` and ``"class/slanted"``.

    Raises:
        InputError: the task is unknown, or the images are not grey.
    """
    name = None if task is None else read_task(task, images.name, {"class": _MEASURES})[1]
    if name is None:
        return images
    channels = images.pixels.shape[1]
    require(channels == 1, f"'{images.name}' must have grey images for the property '{name}' (got {channels} channels)")
    values = _MEASURES[name](images.pixels)
    has_property = torch.zeros(len(values), dtype=torch.bool)
    for label in range(images.classes):
        members = torch.nonzero(images.labels == label).flatten()
        order = torch.argsort(values[members], descending=True, stable=True)
        has_property[members[order[: round(PROPERTY_SHARE * len(members))]]] = True
    return replace(images, has_property=has_property)


def thickness(pixels: Tensor) -> Tensor:
    """Return the mean stroke width in pixels, (M,) float64, of bright ink in images (M, 1, H, W); 0 without ink.

    The width is twice the sum of the brightness divided by the total variation of the brightness (the coarea formula).
    """
    widths = [np.zeros(0)]
    for block in pixels[:, 0].split(_BLOCK):
        ink = np.pad(block.numpy().astype(np.float32), ((0, 0), (1, 1), (1, 1)))
        right, down = np.diff(ink, axis=2)[:, :-1], np.diff(ink, axis=1)[:, :, :-1]
        edge = np.sqrt(right * right + down * down).sum((1, 2), dtype=np.float64)
        widths.append(2 * ink.sum((1, 2), dtype=np.float64) / np.maximum(edge, 1e-9))
    return torch.from_numpy(np.concatenate(widths))


def slant(pixels: Tensor) -> Tensor:
    """Return the slant of strokes, (M,) float64, in pixels to the right per pixel upwards; 0 without ink or height.

    The slant is ``-mu_xy / mu_yy``, from the second moments about the centre of the bright ink, with y downwards.
    """
    height, width = pixels.shape[-2:]
    y, x = torch.meshgrid(torch.arange(height).double(), torch.arange(width).double(), indexing="ij")
    monomials = torch.stack([torch.ones_like(x), x, y, x * y, y * y]).flatten(1).T
    slants = [torch.zeros(0, dtype=torch.float64)]
    for block in pixels.flatten(1).split(_BLOCK):
        # Sums of integers, exact in float64, so that the order of summation cannot change a threshold.
        ink, sx, sy, sxy, syy = (block.double() @ monomials).unbind(1)
        mixed, down = ink * sxy - sx * sy, ink * syy - sy * sy
        slants.append(torch.where(down > 0, -mixed / down.clamp(min=1), 0.0))
    return torch.cat(slants)


_MEASURES = {"slanted": slant, "thick": thickness}


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
    """Return ``folder`` if it has the attributes and a folder of images, else None."""
    return folder if (folder / FILE).is_file() and _image_folder(folder) is not None else None


def load_lfw(path: Path, task: str | None) -> ImageDataset:
    """Load the faces of a task, (M, 3, 62, 47), in the order of the attributes file, without an official split.

    The sign of a score decides ``smiling`` and ``gender`` (1: male). The largest score decides ``race`` (0 Asian, 1
    white, 2 black) and the glasses; faces with a largest score below -0.1 are left out. Each image is the centre of the
    original, rows 70 to 195 and columns 78 to 172, at half size.

    Args:
        path: a folder with ``lfw_attributes.txt`` and the folder of images, ``lfw_funneled``, ``lfw`` or
            ``lfw-deepfunneled``.
        task: ``"MAIN"`` or ``"MAIN/PROPERTY"``. Main labels are ``smiling``, ``race`` (3 classes) and ``gender``.
            Properties are ``sunglasses``, ``eyeglasses``, ``black``, ``smiling`` and ``male``. The main label and the
            property must use different attributes.

    Raises:
        InputError: the task is unknown, a file is missing or damaged, or Pillow is not installed.
    """
    main, name = read_task(task, "lfw", _CHOICES)
    attributes = [_MAIN[main]] if name is None else [_MAIN[main], _PROPERTIES[name][0]]
    folder = _image_folder(path)
    if folder is None:
        raise InputError(f"'{path}' must have a folder of images, named one of {quote(FOLDERS)}")
    files, scores = _read_scores(path / FILE, [column for attribute in attributes for column in attribute])
    labels, clear = _classes(scores[:, : len(attributes[0])])
    has_property = None
    if name is not None:
        classes, also_clear = _classes(scores[:, len(attributes[0]) :])
        clear &= also_clear
        has_property = torch.from_numpy((classes == _PROPERTIES[name][1])[clear])
    require(
        bool(clear.any()), f"'{path / FILE}' must have a row with a largest score of at least {_MIN_SCORE} for '{task}'"
    )
    images = [folder / file for file, taken in zip(files, clear, strict=True) if taken]
    _require_images(images, path / FILE)
    pixels = torch.from_numpy(np.stack(read_pictures(images, ("JPEG",), _face)))
    labels = torch.from_numpy(labels[clear])
    return ImageDataset("lfw", pixels, 255, labels, len(labels), 3 if main == "race" else 2, has_property)


def count_lfw(path: Path) -> str:
    """Return the number and size of the images listed in a folder's attributes file.

    Raises:
        InputError: the file is damaged, or an image is missing.
    """
    files, _ = _read_scores(path / FILE, [])
    folder = _image_folder(path) or path / FOLDERS[0]
    _require_images([folder / file for file in files], path / FILE)
    return f"{len(files):,} of {_SMALL[1]}x{_SMALL[0]}"


def _classes(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return classes (n,) for an attribute's scores (n, columns), and a mask (n,) of the rows with a class."""
    if scores.shape[1] == 1:
        return (scores[:, 0] > 0).astype(np.int64), np.ones(len(scores), bool)
    return scores.argmax(1), scores.max(1) >= _MIN_SCORE


def _image_folder(folder: Path) -> Path | None:
    return next((folder / name for name in FOLDERS if (folder / name).is_dir()), None)


def _read_scores(path: Path, columns: list[str]) -> tuple[list[Path], np.ndarray]:
    """Read each row's image path, relative to the folder of images, and the scores (n, columns)."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError as error:
        raise InputError(f"'{path}' is missing; download LFW's attributes") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{path}' cannot be read as LFW's attributes ({error})") from error
    # The official file has a comment before its header, and a "#" in it.
    table = [[cell.strip() for cell in line.removeprefix("#\t").split("\t")] for line in lines]
    start = next((i for i, cells in enumerate(table) if "person" in cells), 0)
    header, needed = table[start] if table else [], ["person", "imagenum", *columns]
    missing = quote(name for name in needed if name not in header)
    require(not missing, f"'{path}' lacks the columns {missing}; the header must name all columns, separated by tabs")
    rows = [(f"'{path}', line {start + i}", cells) for i, cells in enumerate(table[start + 1 :], 2) if any(cells)]
    require(len(rows) > 0, f"'{path}' must have at least one row (got none)")
    for where, cells in rows:
        require(
            len(cells) == len(header),
            f"{where}: the row must have {len(header)} columns, like the header (got {len(cells)})",
        )
    places = [header.index(name) for name in needed]
    files, scores = zip(*(_row([cells[place] for place in places], where) for where, cells in rows), strict=True)
    return list(files), np.array(scores, dtype=np.float64)


def _row(cells: list[str], where: str) -> tuple[Path, list[float]]:
    """Return the image path and the scores of one row."""
    person, number, *scores = cells
    folder = person.replace(" ", "_")
    plain = bool(folder) and folder not in {".", ".."} and "/" not in folder and "\\" not in folder
    require(
        plain and number.isdecimal() and len(number) < 9,
        f"{where}: the row must have a person's name and an image number (got {person!r} and {number!r})",
    )
    try:
        values = [float(score) for score in scores]
    except ValueError as error:
        raise InputError(f"{where}: the attribute scores must be numbers ({error})") from error
    require(bool(np.isfinite(values).all()), f"{where}: the attribute scores must be finite (got {', '.join(scores)})")
    return Path(folder) / f"{folder}_{int(number):04d}.jpg", values


def _require_images(paths: list[Path], attributes: Path) -> None:
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise InputError(
            f"{len(missing):,} of {len(paths):,} images named by '{attributes}' are missing (first "
            f"'{missing[0]}'); unpack the whole archive again"
        )


def _face(image: "Image") -> np.ndarray:
    """Crop and resize an image to (3, 62, 47) like scikit-learn's fetch_lfw_people (Pillow's bicubic filter)."""
    if image.size != _SIZE:
        raise ValueError(f"{image.size[0]}x{image.size[1]} pixels; LFW's images have {_SIZE[0]}x{_SIZE[1]}")
    return np.asarray(image.convert("RGB").crop(_BOX).resize(_SMALL)).transpose(2, 0, 1)


VOCABULARY = 3000
"""The size of the vocabulary; less frequent words are removed from the texts."""

MAX_WORDS = 200
"""The maximum length of a text in words; the longest text determines a GRU's running time."""

STARS = 5

_FILE = "yelp_academic_dataset_review.json"


@dataclass(frozen=True)
class _Review:
    user_id: str
    stars: Annotated[float, Field(strict=True, ge=1, le=STARS, multiple_of=1)]
    text: str


_REVIEW = TypeAdapter(_Review)


def find_yelp(folder: Path) -> Path | None:
    """Find the official file of reviews, plain or gzipped, in a folder or its sub-folder ``yelp_dataset``."""
    files = (folder / sub / f"{_FILE}{end}" for sub in ("", "yelp_dataset") for end in ("", ".gz"))
    return next((path for path in files if path.is_file()), None)


def load_yelp(path: Path, task: str | None = None) -> TextDataset:
    """Load the reviews by the ten users with the most reviews, in the order of the file.

    Texts are split into lower-case words of two or more letters or digits, as in scikit-learn's `CountVectorizer`. The
    3,000 most frequent words are numbered from 1 by decreasing frequency. Texts without any of the 3,000 words are left
    out. Labels are the stars minus 1, and the data have no official split.

    Args:
        path: the file ``yelp_academic_dataset_review.json`` of the Yelp Open Dataset, plain or gzipped, or its folder.
        task: "score" or None, or "score/author-1" to "score/author-10"; author 1 has the most reviews.

    Raises:
        InputError: the task is unknown, the file is damaged, or the file has fewer than ten users.
    """
    from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415 - scikit-learn takes a second to import

    wanted = read_author_task(task, "yelp")
    if path.is_dir():
        file = find_yelp(path)
        if file is None:
            raise InputError(f"'{path}' must have the file '{_FILE}', plain or .gz")
        path = file
    reviews = list(_by_most_active_users(path))
    split = CountVectorizer().build_analyzer()
    texts = [split(text) for text, _, _ in reviews]
    words_by_count = _by_falling_count(Counter(word for text in texts for word in text))
    number = {word: number for number, word in enumerate(words_by_count[:VOCABULARY], 1)}
    numbered = [[number[word] for word in text if word in number][:MAX_WORDS] for text in texts]
    kept = [i for i, text in enumerate(numbered) if text]
    require(
        bool(kept), f"'{path}' must have a text with a word of two or more letters by one of the ten most active users"
    )
    authors = torch.tensor([reviews[i][2] for i in kept])
    return TextDataset(
        name="yelp",
        words=pad_sequence([torch.tensor(numbered[i]) for i in kept], batch_first=True),
        vocabulary=len(number),
        labels=torch.tensor([reviews[i][1] - 1 for i in kept]),
        train_count=len(kept),
        classes=STARS,
        has_property=None if wanted is None else authors == wanted,
    )


def count_yelp(path: Path) -> str:
    """Count the reviews of all users in the official file by its lines; only the first review is parsed.

    Raises:
        InputError: the file cannot be read, or does not begin with a review.
    """
    count = 0
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                if not count:
                    _parse_line(line, path, number)
                count += 1
    return f"{count:,} reviews"


def _by_most_active_users(path: Path) -> Iterator[tuple[str, int, int]]:
    """Yield text, stars and author (from 0) of each review by one of the ten users with the most reviews."""
    with open_file(path) as file:
        parsed = (_parse_line(line, path, number) for number, line in enumerate(file, 1))
        # Interned: there are several times as many lines as users.
        users = [sys.intern(review.user_id) if review else None for review in parsed]
    counts = Counter(user for user in users if user is not None)
    require(len(counts) >= AUTHORS, f"'{path}' must have reviews by at least {AUTHORS} users (got {len(counts)})")
    rank = {user: rank for rank, user in enumerate(_by_falling_count(counts)[:AUTHORS])}
    with open_file(path) as file:
        for number, (line, user) in enumerate(zip(file, users, strict=True), 1):
            if user in rank and (review := _parse_line(line, path, number)):
                yield review.text, int(review.stars), rank[user]


def _parse_line(line: bytes, path: Path, number: int) -> _Review | None:
    """Parse and check the review on a line; return None for an empty line."""
    if not line.strip():
        return None
    try:
        return _REVIEW.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = "".join(f"'{key}': " for key in first["loc"]) + first["msg"].replace(" line 1", "")
        raise InputError(
            f"'{path}', line {number:,}: the line must be a review ({reason}); download the file again"
        ) from error


def _by_falling_count(counts: Counter[str]) -> list[str]:
    """Return the words by decreasing count, and words of equal count in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))
