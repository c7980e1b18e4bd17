"""Yelp-author: reviews by the ten most active authors of the Yelp Open Dataset, with their stars.

Source: Kim et al., RAID 2023, doi:10.1145/3607199.3607218, section 4.1.1. Words are numbered as in the authors' public
code, with two differences: that code looks words up as they are written in a vocabulary in lower case, so that
capitalised words vanish, while here both are in lower case; and it pads every text to the longest one, while here texts
are cut at `MAX_WORDS` words.
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
from shoal.data.sources.author_tasks import AUTHORS, author_property, check_author_task
from shoal.data.sources.idx import opened

VOCABULARY = 3000
"""Number of words that are kept, the most frequent ones; the others are left out of the texts."""

MAX_WORDS = 200
"""Words of a text that are kept: a GRU takes as long as the longest text of a batch needs, and a few reviews have a
thousand words."""

STARS = 5

_FILE = "yelp_academic_dataset_review.json"
_KEYS = ("user_id", "stars", "text")


def find_yelp(folder: Path) -> Path | None:
    """The official file of reviews, plain or gzipped, in a folder or its sub-folder ``yelp_dataset``."""
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
        Labels are stars - 1; ``has_property`` says which reviews are by the task's author. There is no official split.

    Raises:
        InputError: an unknown task, a damaged file, or one with fewer than ten users.
    """
    from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415 - scikit-learn takes a second to import

    check_author_task(task, "yelp")
    if path.is_dir():
        file = find_yelp(path)
        require(file is not None, f"'{path}' has no '{_FILE}', plain or .gz, which is where Yelp's reviews are")
        assert file is not None
        path = file
    texts, labels, authors = [], [], []
    split = CountVectorizer().build_analyzer()
    for author, stars, text in _reviews(path, _author_ranks(path)):
        texts.append(split(text))
        labels.append(stars - 1)
        authors.append(author)
    number = _word_numbers(texts)
    numbered = [[number[word] for word in text if word in number][:MAX_WORDS] for text in texts]
    kept = [i for i, text in enumerate(numbered) if text]
    require(bool(kept), f"'{path}' has no text with a word of two or more letters by its ten most active users")
    words = np.zeros((len(kept), max(map(len, numbered))), dtype=np.int64)
    for row, i in zip(words, kept, strict=True):
        row[: len(numbered[i])] = numbered[i]
    indices = torch.tensor(kept)
    return TextDataset(
        name="yelp",
        words=torch.from_numpy(words),
        vocabulary=len(number),
        labels=torch.tensor(labels)[indices],
        train_count=len(kept),
        classes=STARS,
        has_property=author_property(task, "yelp", torch.tensor(authors)[indices]),
    )


def _author_ranks(path: Path) -> array:
    """For each line of the file, the rank of its author among the ten with most reviews, from 1; 0 for others."""
    users: dict[str, int] = {}
    user_of_line = array("I")
    with opened(path) as file:
        for number, line in enumerate(file, 1):
            review = _parsed(line, path, number)
            user_of_line.append(users.setdefault(review["user_id"], len(users) + 1) if review else 0)
    require(len(users) >= AUTHORS, f"'{path}' has reviews by {len(users)} users; at least {AUTHORS} are needed")
    user = np.frombuffer(user_of_line, dtype=np.uintc)
    counts = np.bincount(user, minlength=len(users) + 1)
    names = {index: name for name, index in users.items()}
    most_active = sorted(names, key=lambda index: (-counts[index], names[index]))[:AUTHORS]
    rank = np.zeros(len(users) + 1, dtype=np.uint8)
    rank[most_active] = range(1, AUTHORS + 1)
    return array("B", rank[user].tobytes())


def _reviews(path: Path, ranks: array) -> Iterator[tuple[int, int, str]]:
    """Author from 0, stars and text of each review by one of the ten; ``ranks`` as `_author_ranks`."""
    with opened(path) as file:
        for number, (line, rank) in enumerate(zip(file, ranks, strict=True), 1):
            if rank:
                review = _parsed(line, path, number)
                yield rank - 1, int(review["stars"]), review["text"]


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
    strings = isinstance(review["user_id"], str) and isinstance(review["text"], str)
    require(strings, f"'{path}' has a 'user_id' or 'text' that is no string at line {number:,}")
    stars = review["stars"]
    require(
        not isinstance(stars, bool) and stars in range(1, STARS + 1),
        f"'{path}' has the stars {stars!r} at line {number:,}; 1 to {STARS} allowed",
    )
    return review


def _word_numbers(texts: list[list[str]]) -> dict[str, int]:
    """The numbers of the most frequent words, from 1 by falling frequency, then in alphabetical order."""
    counts = Counter(word for text in texts for word in text)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:VOCABULARY]
    return {word: number for number, word in enumerate(ranked, 1)}
