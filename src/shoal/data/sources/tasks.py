"""What is learned from a set of pictures, and which property of them an attacker is after: ``"smiling/sunglasses"``."""

from collections.abc import Iterable, Mapping

from shoal.core.errors import InputError, nearest, require

KEY = "'data.task'"


def read_task(task: str | None, source: str, choices: Mapping[str, Iterable[str]]) -> tuple[str, str | None]:
    """The main label and the property of a task, ``"MAIN/PROPERTY"`` or ``"MAIN"``.

    Args:
        task: what the configuration asks for.
        source: name of the set, for the sentence.
        choices: the main labels the set has, each with the properties that go with it.

    Returns:
        The main label, and the property or None.

    Raises:
        InputError: no task, a label or property that the set lacks, or one property that does not go with the label.

    >>> read_task("smiling/hat", "faces", {"smiling": ["hat", "sunglasses"]})
    ('smiling', 'hat')
    >>> read_task("smiling/hats", "faces", {"smiling": ["hat", "sunglasses"]})
    Traceback (most recent call last):
    ...
    shoal.core.errors.InputError: 'data.task' has the unknown property 'hats' of 'faces'; did you mean 'hat'?
    """
    if task is None:
        main, properties = next(iter(choices.items()))
        example = f"'{main}/{next(iter(properties))}' or '{main}'"
        raise InputError(f"data source '{source}' needs {KEY}, such as {example}; main labels are {_listed(choices)}")
    main, slash, held = task.partition("/")
    require(main in choices, f"{KEY} has the unknown main label '{main}' of '{source}'; {nearest(main, choices)}")
    if not slash:
        return main, None
    known = {name for properties in choices.values() for name in properties}
    require(held in known, f"{KEY} has the unknown property '{held}' of '{source}'; {nearest(held, known)}")
    fits = list(choices[main])
    require(
        held in fits,
        f"{KEY} is '{task}', whose main label and property are of the same attribute; with '{main}' go {_listed(fits)}",
    )
    return main, held


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
