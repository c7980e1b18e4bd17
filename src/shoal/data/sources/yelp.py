"""Yelp-author: reviews by the ten most active authors of the Yelp Open Dataset, with their stars.

Source: Kim et al., RAID 2023, doi:10.1145/3607199.3607218, section 4.1.1. Words are numbered as in the authors' public
code, with two differences. That code looks words up as they are written in a vocabulary in lower case, so that
capitalised words vanish; here both are in lower case. It pads every text to the longest one; here texts are cut at
`MAX_WORDS` words.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch.nn.utils.rnn import pad_sequence

from shoal.core.errors import InputError, require
from shoal.data.datasets import TextDataset
from shoal.data.sources.file_contents import open_file
from shoal.data.sources.tasks import AUTHORS, read_author_task

VOCABULARY = 3000
"""Number of words that are kept, the most frequent ones; the others are left out of the texts."""

MAX_WORDS = 200
"""Words of a text that are kept: a GRU's time is that of the longest text, and a few reviews have a thousand words."""

STARS = 5

_FILE = "yelp_academic_dataset_review.json"


@dataclass(frozen=True)
class _Review:
    user_id: str
    stars: Annotated[float, Field(strict=True, ge=1, le=STARS, multiple_of=1)]
    text: str


_REVIEW = TypeAdapter(_Review)


def find_yelp(folder: Path) -> Path | None:
    """The official file of reviews, plain or gzipped, in a folder or its sub-folder ``yelp_dataset``."""
    files = (folder / sub / f"{_FILE}{end}" for sub in ("", "yelp_dataset") for end in ("", ".gz"))
    return next((path for path in files if path.is_file()), None)


def load_yelp(path: Path, task: str | None = None) -> TextDataset:
    """The reviews by the ten users with most of them, in the file's order.

    Words are split as scikit-learn's `CountVectorizer` does: in lower case, two or more letters or digits each. The
    3,000 most frequent words are numbered from 1 by falling frequency. A text with none of them is dropped. The file,
    of several GB, is read twice, line by line.

    Args:
        path: ``yelp_academic_dataset_review.json`` of the Yelp Open Dataset, perhaps gzipped, or its folder.
        task: "score" (also None), or "score/author-1" to "score/author-10", authors by falling number of reviews.

    Returns:
        Labels are stars - 1; ``has_property`` says which reviews are by the task's author. There is no official split.

    Raises:
        InputError: an unknown task, a damaged file, or one with fewer than ten users.
    """
    from sklearn.feature_extraction.text import CountVectorizer  # noqa: PLC0415 - scikit-learn takes a second to import

    wanted = read_author_task(task, "yelp")
    if path.is_dir():
        file = find_yelp(path)
        if file is None:
            raise InputError(f"'{path}' has no '{_FILE}', plain or .gz, which is where Yelp's reviews are")
        path = file
    reviews = list(_by_most_active_users(path))
    split = CountVectorizer().build_analyzer()
    texts = [split(text) for text, _, _ in reviews]
    words_by_count = _by_falling_count(Counter(word for text in texts for word in text))
    number = {word: number for number, word in enumerate(words_by_count[:VOCABULARY], 1)}
    numbered = [[number[word] for word in text if word in number][:MAX_WORDS] for text in texts]
    kept = [i for i, text in enumerate(numbered) if text]
    require(bool(kept), f"'{path}' has no text with a word of two or more letters by its ten most active users")
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
    """The number of reviews in the official file, by all users: its lines, of which only the first is looked into.

    Raises:
        InputError: the file cannot be read, or begins with something else than a review.
    """
    count = 0
    with open_file(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                if not count:
                    _parsed(line, path, number)
                count += 1
    return f"{count:,} reviews"


def _by_most_active_users(path: Path) -> Iterator[tuple[str, int, int]]:
    """Text, stars and author, from 0, of each review by one of the ten users with most of them."""
    with open_file(path) as file:
        parsed = (_parsed(line, path, number) for number, line in enumerate(file, 1))
        # Interned: there are several times as many lines as users.
        users = [sys.intern(review.user_id) if review else None for review in parsed]
    counts = Counter(user for user in users if user is not None)
    require(len(counts) >= AUTHORS, f"'{path}' has reviews by {len(counts)} users; at least {AUTHORS} are needed")
    rank = {user: rank for rank, user in enumerate(_by_falling_count(counts)[:AUTHORS])}
    with open_file(path) as file:
        for number, (line, user) in enumerate(zip(file, users, strict=True), 1):
            if user in rank and (review := _parsed(line, path, number)):
                yield review.text, int(review.stars), rank[user]


def _parsed(line: bytes, path: Path, number: int) -> _Review | None:
    """The review on a line, checked; None for an empty line."""
    if not line.strip():
        return None
    try:
        return _REVIEW.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        reason = "".join(f"'{key}': " for key in first["loc"]) + first["msg"].replace(" line 1", "")
        raise InputError(f"'{path}' has no review at line {number:,} ({reason}); fetch the file again") from error


def _by_falling_count(counts: Counter[str]) -> list[str]:
    """The counted words, the most frequent one first; equally frequent ones in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))
