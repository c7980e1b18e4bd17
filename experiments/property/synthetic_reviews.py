"""Synthetic reviews by ten synthetic authors, as a source: `synthetic_reviews:generate_reviews`.

A review is sampled word by word. Its score shows in words of praise and blame, its topic in the words of that topic,
and its author in favourite words and punctuation marks, in its length, and in whether it judges first or last. Score
and author are independent. Words are numbers without a spelling. The set is the same in every run.
"""

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data.datasets import TextDataset
from shoal.data.sources.tasks import AUTHORS, read_author_task

COUNTS = (1500, 1250, 1050, 900, 800, 700, 600, 500, 400, 300)  # reviews of each author
MIN_WORDS, MAX_WORDS = 8, 40  # of a review
_SCORES = (0.12, 0.12, 0.18, 0.28, 0.30)
_TOPICS, _TOPIC_WORDS, _AUTHOR_WORDS = 8, 50, 45
# The standard deviation of the score that a word of praise or blame expresses: it limits how well scores can be told.
_JUDGEMENT_SD = 0.65

_MARKS, _COMMON = 10, 88  # punctuation marks, and words that all authors use
_JUDGEMENTS = 16  # words of praise or blame for each score


def generate_reviews(_path: Path | None, task: str | None) -> TextDataset:
    """8,000 synthetic reviews of 8 to 40 words with scores from 0 to 4.

    Tasks are "score" (also None), and "score/author-1" to "score/author-10", whose ``has_property`` says which reviews
    are by that author (the first has most).

    Raises:
        InputError: an unknown task.
    """
    author = read_author_task(task, "reviews")
    words, labels, authors = _reviews()
    has_property = None if author is None else authors == author
    return TextDataset("reviews", words, int(words.max()), labels, len(labels), len(_SCORES), has_property)


@cache
def _reviews() -> tuple[Tensor, Tensor, Tensor]:
    """Words (M, L), numbered by falling frequency, scores (M,) and authors (M,)."""
    rng = Stream(0, ("synthetic reviews",)).numpy()
    authors = rng.permutation(np.repeat(np.arange(AUTHORS), COUNTS))
    total = len(authors)
    scores = rng.choice(len(_SCORES), total, p=_SCORES)
    mean_length = np.linspace(14, 32, AUTHORS)[np.arange(AUTHORS) * 7 % AUTHORS]  # not ordered by author
    lengths = np.clip(np.rint(rng.normal(mean_length[authors], 5)), MIN_WORDS, MAX_WORDS)
    position = np.arange(MAX_WORDS)
    kinds = _kinds(rng, authors, position / lengths[:, None])

    shape = (total, MAX_WORDS)
    rank = rng.random(shape) ** 2  # squared: small ranks are frequent, as in natural language
    mark = (_MARKS * rank).astype(int) + authors[:, None]
    topic = rng.integers(_TOPICS, size=total)[:, None]
    level = np.clip(np.rint(scores[:, None] + rng.normal(0, _JUDGEMENT_SD, shape)), 0, len(_SCORES) - 1).astype(int)
    # One favourite word in three is that of a random author.
    favourite = np.where(rng.random(shape) < 1 / 3, rng.integers(AUTHORS, size=shape), authors[:, None])
    starts = np.cumsum([0, _MARKS, _COMMON, _JUDGEMENTS * len(_SCORES), _TOPICS * _TOPIC_WORDS])
    candidates = (
        mark % _MARKS,
        starts[1] + (_COMMON * rank).astype(int),
        starts[2] + _JUDGEMENTS * level + (_JUDGEMENTS * rank).astype(int),
        starts[3] + _TOPIC_WORDS * topic + (_TOPIC_WORDS * rank).astype(int),
        starts[4] + _AUTHOR_WORDS * favourite + (_AUTHOR_WORDS * rank).astype(int),
    )
    words = np.choose(kinds, candidates)
    inside = position < lengths[:, None]
    count = np.bincount(words[inside], minlength=starts[4] + AUTHORS * _AUTHOR_WORDS)
    order = np.argsort(-count, kind="stable")[: np.count_nonzero(count)]
    number = np.zeros(len(count), dtype=np.int64)
    number[order] = np.arange(1, len(order) + 1)
    words = np.where(inside, number[words], 0)
    return torch.from_numpy(words), torch.from_numpy(scores), torch.from_numpy(authors)


def _kinds(rng: np.random.Generator, authors: np.ndarray, position: np.ndarray) -> np.ndarray:
    """The kind of each word (M, L): 0 punctuation, 1 common, 2 praise or blame, 3 topic, 4 favourite.

    ``position`` (M, L) is a word's place in its text from 0 to 1. Every other author judges at the beginning, the
    others at the end.
    """
    judges_here = (position < 0.4) == (authors % 2 == 0)[:, None]
    marks = np.linspace(0.04, 0.13, AUTHORS)[authors * 3 % AUTHORS][:, None]
    favourites = np.linspace(0.12, 0.2, AUTHORS)[authors * 7 % AUTHORS][:, None]
    judgements = np.where(judges_here, 0.28, 0.08)
    uniform = rng.random(position.shape)
    edges = np.broadcast_arrays(marks, marks + 0.32, marks + 0.32 + judgements, 1 - favourites)
    return (uniform > np.stack(edges)).sum(axis=0)
