"""The Yelp-author data: reviews by the ten most active authors of the Yelp Open Dataset, with their stars.

Source: Kim et al., RAID 2023, doi:10.1145/3607199.3607218, section 4.1.1. Words are numbered as in the authors' public
code, but for two things: that code compares words as they are written with a vocabulary in lower case, so that
capitalised words vanish, while here both are in lower case; and it pads every text to the longest one, while here texts
are cut at `LONGEST` words.
"""

import json
from array import array
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shoal.core.errors import InputError, require
from shoal.data.datasets import TextDataset
from shoal.data.sources.author_tasks import AUTHORS, check_task, held_by
from shoal.data.sources.idx import opened

VOCABULARY = 3000
"""The most frequent words are kept, as many as this; others are left out of the texts."""

LONGEST = 200
"""Known words that are read of a text: a GRU's time is that of the longest text of a batch, and a few reviews have a
thousand words."""

STARS = 5

_FILE = "yelp_academic_dataset_review.json"
_KEYS = ("user_id", "stars", "text")


def find_yelp(folder: Path) -> Path | None:
    """The official file of reviews in a folder, plain or gzipped, by itself or in ``yelp_dataset``."""
    files = (folder / sub / f"{_FILE}{end}" for sub in ("", "yelp_dataset") for end in ("", ".gz"))
    return next((path for path in files if path.is_file()), None)


def load_yelp(path: Path, task: str = "score") -> TextDataset:
    """The reviews by the ten users with most of them, in the file's order.

    Words are split as scikit-learn's `CountVectorizer` does: in lower case, two or more letters or digits each. The
    3,000 most frequent words are numbered from 1 by falling frequency. A text with none of them is dropped. The file,
    of several GB, is read twice, line by line.

    Args:
        path: ``yelp_academic_dataset_review.json`` of the Yelp Open Dataset, perhaps gzipped, or its folder.
        task: "score", or "score/author-1" to "score/author-10", authors by falling number of reviews.

    Returns:
        Labels are stars - 1; ``holds`` says which reviews are by the task's author. There is no official split.

    Raises:
        InputError: an unknown task, a damaged file, or one with fewer than ten users.
    """
    # Here, since scikit-learn takes long to import.
    from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415

    check_task(task, "yelp")
    if path.is_dir():
        found = find_yelp(path)
        require(found is not None, f"'{path}' has no '{_FILE}', plain or .gz, which is where Yelp's reviews are")
        assert found is not None
        path = found
    authors = _most_active(path)
    texts, labels, kept_authors = [], [], []
    split = CountVectorizer().build_analyzer()
    for user, stars, text in _reviews(path, authors):
        texts.append(split(text))
        labels.append(stars - 1)
        kept_authors.append(user)
    numbers = _numbers(texts)
    numbered = [[numbers[word] for word in text if word in numbers][:LONGEST] for text in texts]
    filled = [row for row, text in enumerate(numbered) if text]
    require(bool(filled), f"'{path}' has no text with a word of two or more letters by its ten most active users")
    words = np.zeros((len(filled), max(map(len, numbered))), dtype=np.int64)
    for line, row in zip(words, filled, strict=True):
        line[: len(numbered[row])] = numbered[row]
    chosen = torch.tensor(filled)
    return TextDataset(
        name="yelp",
        words=torch.from_numpy(words),
        vocabulary=len(numbers),
        labels=torch.tensor(labels)[chosen],
        train_count=len(filled),
        classes=STARS,
        holds=held_by(task, "yelp", torch.tensor(kept_authors)[chosen]),
    )


def _most_active(path: Path) -> array:
    """For each line of the file, 1 + the place of its author among the ten with most reviews; 0 for others."""
    users: dict[str, int] = {}
    writers = array("I")
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            review = _parsed(line, path, number)
            writers.append(users.setdefault(review["user_id"], len(users) + 1) if review else 0)
    require(len(users) >= AUTHORS, f"'{path}' has reviews by {len(users)} users; at least {AUTHORS} are needed")
    written = np.frombuffer(writers, dtype=np.uintc)
    counts = np.bincount(written, minlength=len(users) + 1)
    names = {index: name for name, index in users.items()}
    ranked = sorted(names, key=lambda index: (-counts[index], names[index]))[:AUTHORS]
    places = np.zeros(len(users) + 1, dtype=np.uint8)
    places[ranked] = range(1, AUTHORS + 1)
    return array("B", places[written].tobytes())


def _reviews(path: Path, authors: array) -> Iterator[tuple[int, int, str]]:
    """Author from 0, stars and text of each review by one of the ten."""
    with opened(path) as file:
        for number, (line, author) in enumerate(zip(file, authors, strict=True), 1):
            if author:
                review = _parsed(line, path, number)
                yield author - 1, int(review["stars"]), review["text"]


def _parsed(line: bytes, path: Path, number: int) -> dict[str, Any]:
    """The review on a line, checked; empty for an empty line."""
    if not line.strip():
        return {}
    try:
        review = json.loads(line)
    except ValueError as error:
        raise InputError(f"'{path}' is not JSON at line {number:,} ({error}); fetch the file again") from error
    require(isinstance(review, dict), f"'{path}' has no JSON object at line {number:,}; each line must be a review")
    missing = [key for key in _KEYS if key not in review]
    require(
        not missing,
        f"'{path}' lacks '{', '.join(missing)}' at line {number:,}; a review of Yelp's has {', '.join(_KEYS)}",
    )
    right = isinstance(review["user_id"], str) and isinstance(review["text"], str)
    require(right, f"'{path}' has a 'user_id' or 'text' that is no string at line {number:,}")
    stars = review["stars"]
    sentence = f"'{path}' has the stars {stars!r} at line {number:,}; 1 to {STARS} allowed"
    require(not isinstance(stars, bool) and stars in range(1, STARS + 1), sentence)
    return review


def _numbers(texts: list[list[str]]) -> dict[str, int]:
    """The numbers of the most frequent words, from 1 by falling frequency, then by the alphabet."""
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:VOCABULARY]
    return {word: number for number, word in enumerate(ranked, 1)}
