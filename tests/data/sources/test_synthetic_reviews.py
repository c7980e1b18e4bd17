"""Synthetic reviews: their words, authors and scores."""

import pytest
import torch
from torch import Tensor

from shoal.core.errors import InputError
from shoal.data.sources import synthetic_reviews
from shoal.data.sources.catalog import availability, load_dataset
from shoal.data.sources.synthetic_reviews import COUNTS, generate_reviews


def authors() -> Tensor:
    """(M,), each review's author from 0, by the ten tasks."""
    masks = torch.stack([generate_reviews(f"score/author-{k}").has_property for k in range(1, 11)])  # pyright: ignore
    assert bool((masks.sum(dim=0) == 1).all()), "each review has one author"
    return masks.int().argmax(dim=0)


def test_the_set_is_what_its_docstring_says():
    texts = generate_reviews()
    assert texts.words.shape == (8000, 40)
    assert texts.words.dtype == texts.labels.dtype == torch.int64
    assert (texts.name, texts.classes, texts.train_count, texts.has_property) == ("reviews", 5, 8000, None)
    assert 1000 <= texts.vocabulary <= 1500
    assert texts.words.unique().tolist() == list(range(texts.vocabulary + 1)), "every number is some word's"
    lengths = (texts.words > 0).sum(dim=1)
    assert (int(lengths.min()), int(lengths.max())) == (8, 40)
    inside = torch.arange(40) < lengths[:, None]
    assert torch.equal(texts.words > 0, inside), "zeros only pad"
    assert texts.labels.bincount().min() > 800


def test_words_are_numbered_by_falling_frequency():
    texts = generate_reviews()
    counts = texts.words.flatten().bincount()[1:]
    assert (counts.diff() <= 0).all()


def test_synthetic_reviews_are_the_same_each_time():
    first = generate_reviews()
    synthetic_reviews._reviews.cache_clear()
    again = generate_reviews()
    assert torch.equal(first.words, again.words)
    assert torch.equal(first.labels, again.labels)


def test_the_first_author_wrote_most():
    assert authors().bincount().tolist() == list(COUNTS)
    assert sorted(COUNTS, reverse=True) == list(COUNTS)


def test_score_and_author_are_all_but_independent():
    labels = generate_reviews().labels
    overall = labels.bincount(minlength=5) / len(labels)
    for author in range(10):
        mine = labels[authors() == author]
        assert (mine.bincount(minlength=5) / len(mine) - overall).abs().max() < 0.05


def naive_bayes(words: Tensor, labels: Tensor, classes: int, cut: int) -> float:
    """Accuracy on the texts from ``cut`` on, of multinomial naive Bayes on those before."""
    counts = torch.zeros(len(words), int(words.max()) + 1).scatter_add_(1, words, torch.ones(words.shape))[:, 1:]
    by_class = torch.stack([counts[:cut][labels[:cut] == c].sum(dim=0) for c in range(classes)]) + 1
    prior = labels[:cut].bincount(minlength=classes).log()
    predicted = (counts[cut:] @ (by_class / by_class.sum(dim=1, keepdim=True)).log().T + prior).argmax(dim=1)
    return float((predicted == labels[cut:]).float().mean())


def test_words_tell_score_and_author_but_not_for_certain():
    texts = generate_reviews()
    assert 0.65 < naive_bayes(texts.words, texts.labels, 5, 6000) < 0.9
    assert 0.65 < naive_bayes(texts.words, authors(), 10, 6000) < 0.97


def test_authors_write_texts_of_different_lengths():
    lengths = (generate_reviews().words > 0).sum(dim=1).double()
    means = torch.stack([lengths[authors() == author].mean() for author in range(10)])
    assert means.max() - means.min() > 10


def test_synthetic_reviews_are_in_the_catalog():
    assert torch.equal(load_dataset("reviews").words, generate_reviews().words)  # pyright: ignore
    has_property = load_dataset("reviews", task="score/author-4").has_property
    assert has_property is not None
    assert int(has_property.sum()) == COUNTS[3]
    row = {row.name: row for row in availability(None)}["reviews"]
    assert row.path is not None
    assert row.path.is_file()


def test_an_unknown_task_is_refused():
    with pytest.raises(InputError, match=r"'task' is 'scores', no task of 'reviews'; did you mean 'score'\?"):
        load_dataset("reviews", task="scores")
