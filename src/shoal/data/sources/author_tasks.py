"""Tasks of a set of reviews: the score is the main label, the author of a review is its property."""

from torch import Tensor

from shoal.core.errors import nearest, require

AUTHORS = 10
"""Authors in a set of reviews, numbered from 1 by falling number of reviews."""

AUTHOR_TASKS = ("score", *(f"score/author-{author}" for author in range(1, AUTHORS + 1)))
"""The score alone, and the score with the property "the review is by that author"."""


def author_property(task: str, source: str, authors: Tensor) -> Tensor | None:
    """Which reviews have the property of a task.

    Args:
        task: one of `AUTHOR_TASKS`.
        source: name of the data set, for the error sentence.
        authors: (M,) int64, each review's author, from 0.

    Returns:
        (M,) bool, or None where the task names no property.

    Raises:
        InputError: the task is not known.

    >>> import torch
    >>> author_property("score/author-2", "reviews", torch.tensor([0, 1, 1]))
    tensor([False,  True,  True])
    """
    check_author_task(task, source)
    _, _, author = task.partition("/author-")
    return authors == int(author) - 1 if author else None


def check_author_task(task: str, source: str) -> None:
    """Raise `InputError` unless ``task`` is one of `AUTHOR_TASKS`."""
    require(task in AUTHOR_TASKS, f"'task' is '{task}', no task of '{source}'; {nearest(task, AUTHOR_TASKS)}")
