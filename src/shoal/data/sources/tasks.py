"""Tasks ``"MAIN/PROPERTY"``, such as ``"smiling/sunglasses"``: the label that is learned, the property under attack."""

from collections.abc import Iterable, Mapping

from shoal.core.errors import InputError, nearest, quoted, require

AUTHORS = 10
"""Authors in a set of reviews, numbered from 1 by falling number of reviews."""

AUTHOR_TASKS = ("score", *(f"score/author-{author}" for author in range(1, AUTHORS + 1)))
"""The score alone, and the score with the property "the review is by that author"."""


def read_task(task: str | None, source: str, choices: Mapping[str, Iterable[str]]) -> tuple[str, str | None]:
    """The main label and the property (or None) of a task, ``"MAIN/PROPERTY"`` or ``"MAIN"``, of the set ``source``.

    ``choices`` are its main labels, each with the properties that it can be combined with.

    Raises:
        InputError: no task, an unknown label or property, or a property that cannot be combined with the label.

    >>> read_task("smiling/hat", "faces", {"smiling": ["hat", "sunglasses"]})
    ('smiling', 'hat')
    >>> read_task("smiling/hats", "faces", {"smiling": ["hat", "sunglasses"]})
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'task' has the unknown property 'hats' of 'faces'; did you mean 'hat'?
    """
    if task is None:
        main, properties = next(iter(choices.items()))
        example = f"'{main}/{next(iter(properties))}' or '{main}'"
        raise InputError(f"data source '{source}' needs a 'task', such as {example}; main labels are {quoted(choices)}")
    main, slash, name = task.partition("/")
    require(main in choices, f"'task' has the unknown main label '{main}' of '{source}'; {nearest(main, choices)}")
    if not slash:
        return main, None
    known = {each for properties in choices.values() for each in properties}
    require(name in known, f"'task' has the unknown property '{name}' of '{source}'; {nearest(name, known)}")
    allowed = list(choices[main])
    require(
        name in allowed,
        f"'task' is '{task}', whose main label and property are of the same attribute; with '{main}' go "
        f"{quoted(allowed)}",
    )
    return main, name


def read_author_task(task: str | None, source: str) -> int | None:
    """The author, from 0, that a task of the set of reviews ``source`` names; None where it names none.

    Raises:
        InputError: it is none of `AUTHOR_TASKS`.

    >>> read_author_task("score/author-2", "reviews")
    1
    """
    task = "score" if task is None else task
    require(task in AUTHOR_TASKS, f"'task' is '{task}', no task of '{source}'; {nearest(task, AUTHOR_TASKS)}")
    _, _, author = task.partition("/author-")
    return int(author) - 1 if author else None
