"""Tasks ``"MAIN/PROPERTY"``, such as ``"smiling/sunglasses"``: the label that is learned, the property under attack."""

from collections.abc import Iterable, Mapping

from shoal.core.errors import InputError, nearest, require


def read_task(task: str | None, source: str, choices: Mapping[str, Iterable[str]]) -> tuple[str, str | None]:
    """The main label and the property of a task, ``"MAIN/PROPERTY"`` or ``"MAIN"``.

    Args:
        task: the task.
        source: name of the data set, for the error sentence.
        choices: the main labels of the data set, each with the properties that it can be combined with.

    Returns:
        The main label, and the property or None.

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
        raise InputError(
            f"data source '{source}' needs a 'task', such as {example}; main labels are {_quoted(choices)}"
        )
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
        f"{_quoted(allowed)}",
    )
    return main, name


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
