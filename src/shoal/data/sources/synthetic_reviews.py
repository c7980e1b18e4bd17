"""Made-up reviews by ten authors, for texts without a download: no person wrote a word of them.

A review is drawn word by word. What it says of its score is in words of praise and blame, what it is about in the words
of a topic, and who wrote it in favourite words and marks, in how long it is, and in whether it judges first or last.
Score and author are independent. The set is the same in every run.
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.datasets import TextDataset
from shoal.data.sources.author_tasks import AUTHORS, held_by

COUNTS = (1500, 1250, 1050, 900, 800, 700, 600, 500, 400, 300)
"""Reviews of each author."""

SHORTEST, LONGEST = 8, 40
"""Words of a review."""

_SCORES = (0.12, 0.12, 0.18, 0.28, 0.30)
_TOPICS, _TOPIC_WORDS, _AUTHOR_WORDS = 8, 50, 45
_DOUBT = 0.65
"""How far words of praise and blame stray from the score, in scores: it decides how well the scores can be told."""

_MARKS, _COMMON = (
    words.split()
    for words in (
        ", . ! ... ? - ; :) () &",
        "the a i we it was and to of in for with on at but my our this that they had have is are be not so as just "
        "from there here when then very too also again all some one two more about after before because would will "
        "can could get got go went came come back only even still really quite if or no you your their them he she "
        "who what which where how other than over out up down first last time day place",
    )
)
_JUDGED = tuple(
    words.split()
    for words in (
        "terrible awful horrible worst disgusting rude dirty never avoid refund broken stale burnt scam ruined "
        "appalling",
        "bad poor slow bland cold disappointing overpriced mediocre noisy careless wrong greasy dull cramped wait "
        "sorry",
        "okay fine average decent plain usual fair mixed ordinary alright middling acceptable standard passable "
        "so-so meh",
        "good nice tasty friendly fresh pleasant solid clean helpful cozy enjoyed quick warm generous neat liked",
        "amazing excellent perfect best wonderful delicious fantastic loved outstanding superb favorite incredible "
        "heavenly flawless stunning brilliant",
    )
)


def write_reviews(task: str = "score") -> TextDataset:
    """8,000 synthetic reviews of 8 to 40 words with scores from 0 to 4.

    Args:
        task: "score", or "score/author-1" to "score/author-10", whose ``holds`` says which reviews are by that author
            (the first wrote most).

    Raises:
        InputError: an unknown task.
    """
    words, labels, authors, names = _written()
    return TextDataset(
        "reviews", words, len(names), labels, len(labels), len(_SCORES), held_by(task, "reviews", authors)
    )


def spelled(words: Tensor) -> str:
    """One of these reviews, words (L,) int64, in letters.

    >>> spelled(write_reviews().words[4])[:46]
    'scam your place ? this careless meh was ! rule'
    """
    *_, names = _written()
    return " ".join(names[number - 1] for number in words.tolist() if number)


@cache
def _written() -> tuple[Tensor, Tensor, Tensor, tuple[str, ...]]:
    """Words (M, L) by number, scores (M,), authors (M,), and the words in letters by falling frequency."""
    draw = Stream(0, ("synthetic reviews",)).numpy()
    authors = draw.permutation(np.repeat(np.arange(AUTHORS), COUNTS))
    total = len(authors)
    scores = draw.choice(len(_SCORES), total, p=_SCORES)
    usual = np.linspace(14, 32, AUTHORS)[np.arange(AUTHORS) * 7 % AUTHORS]  # in no order of the authors' numbers
    lengths = np.clip(np.rint(draw.normal(usual[authors], 5)), SHORTEST, LONGEST)
    place = np.arange(LONGEST)
    kinds = _kinds(draw, authors, place / lengths[:, None])

    shape = (total, LONGEST)
    # Small ranks are frequent, as in any language.
    rank = draw.random(shape) ** 2
    mark = (len(_MARKS) * rank).astype(int) + authors[:, None]
    topic = draw.integers(_TOPICS, size=total)[:, None]
    level = np.clip(np.rint(scores[:, None] + draw.normal(0, _DOUBT, shape)), 0, len(_SCORES) - 1).astype(int)
    # One favourite word in three is somebody else's.
    favourite = np.where(draw.random(shape) < 1 / 3, draw.integers(AUTHORS, size=shape), authors[:, None])
    starts = np.cumsum([0, len(_MARKS), len(_COMMON), 16 * len(_JUDGED), _TOPICS * _TOPIC_WORDS])
    drawn = (
        mark % len(_MARKS),
        starts[1] + (len(_COMMON) * rank).astype(int),
        starts[2] + 16 * level + (16 * rank).astype(int),
        starts[3] + _TOPIC_WORDS * topic + (_TOPIC_WORDS * rank).astype(int),
        starts[4] + _AUTHOR_WORDS * favourite + (_AUTHOR_WORDS * rank).astype(int),
    )
    chosen = np.choose(kinds, drawn)
    read = place < lengths[:, None]
    count = np.bincount(chosen[read], minlength=starts[4] + AUTHORS * _AUTHOR_WORDS)
    order = np.argsort(-count, kind="stable")[: np.count_nonzero(count)]
    number = np.zeros(len(count), dtype=np.int64)
    number[order] = np.arange(1, len(order) + 1)
    names = [*_MARKS, *_COMMON, *(word for words in _JUDGED for word in words), *_coined(len(count) - starts[3])]
    return (
        torch.from_numpy(np.where(read, number[chosen], 0)),
        torch.from_numpy(scores),
        torch.from_numpy(authors),
        tuple(names[word] for word in order),
    )


def _kinds(draw: np.random.Generator, authors: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Of each word (M, L), at its place in the text from 0 to 1: 0 mark, 1 common, 2 praise or blame, 3 topic, 4
    favourite. Every other author judges at the beginning, the others at the end.
    """
    judging = (place < 0.4) == (authors % 2 == 0)[:, None]
    marks = np.linspace(0.04, 0.13, AUTHORS)[authors * 3 % AUTHORS][:, None]
    favourites = np.linspace(0.12, 0.2, AUTHORS)[authors * 7 % AUTHORS][:, None]
    judged = np.where(judging, 0.28, 0.08)
    uniform = draw.random(place.shape)
    edges = np.broadcast_arrays(marks, marks + 0.32, marks + 0.32 + judged, 1 - favourites)
    return (uniform > np.stack(edges)).sum(axis=0)


def _coined(count: int) -> list[str]:
    """Words of three syllables, all different, for things and names that nothing is called."""
    syllables = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]
    size = len(syllables)
    # 7,919 shares no factor with 70 to the third, so the first 343,000 multiples differ.
    codes = [7919 * (index + 1) % size**3 for index in range(count)]
    return [syllables[code // size**2] + syllables[code // size % size] + syllables[code % size] for code in codes]
