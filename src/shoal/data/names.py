"""Names and numbers of clients, classes, groups and examples."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from shoal.core.errors import quote, require

RESERVED = ("overall", "total")
"""Names that no group may have, because `accuracy.overall` and `violations.total` cover all groups."""

_INTEGER = re.compile("-?[0-9]{1,4000}")
"""An integer as text, short enough for Python's `int`."""

NameOf = Callable[[int], str]
"""A picklable function from an example's number to its name."""

Origins = Mapping[str, NameOf]
"""The functions that name a federation's examples, for the keys clients, holdout and test."""

EVERYBODY = "all"
"""The group name if clients have no groups; in an audit's keys, the name for all groups together."""


def require_group_name(name: object) -> None:
    """Raise `InputError` unless ``name`` is allowed in summary keys, tables and figures."""
    require(isinstance(name, str), f"a group's name must be a string (got {name!r})")
    assert isinstance(name, str)
    require(
        bool(name) and name not in RESERVED,
        f"'{name}' cannot be a group's name; {' and '.join(RESERVED)} mean all groups in summary keys",
    )
    require(
        name.isprintable() and not set(name) & set("/\\"),
        f"a group's name must be printable, without '/' and '\\' (got {name!r})",
    )


def require_group_names(names: Collection[str]) -> None:
    """Raise `InputError` unless ``names`` are allowed as the group names of one federation."""
    for name in names:
        require_group_name(name)
    require_unambiguous(names)


def require_unambiguous(names: Collection[str]) -> None:
    """Raise `InputError` if one of several groups is named ``all``."""
    require(
        len(names) < 2 or EVERYBODY not in names,
        f"'{EVERYBODY}' cannot be the name of one of several groups, because '{EVERYBODY}' means all groups in audits; "
        "choose a different name",
    )


def group_counts(client: Tensor, group: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return the number of examples by client and group, (N, G) float64.

    ``client`` (M,) and ``group`` (M,) are the client and group of each example. ``shape`` is (N, G).
    """
    return torch.bincount(client * shape[1] + group, minlength=shape[0] * shape[1]).reshape(shape).double()


def groups_of_clients(
    name: str, clients: tuple[Tensor, Sequence[str]], groups: tuple[Tensor, Sequence[str]]
) -> tuple[Tensor, list[str]]:
    """Return each client's largest group, (N,) int64, and warnings about clients with several groups.

    Args:
        name: the name of the data in warnings.
        clients: the client number (M,) of each example, and the clients' names.
        groups: the group number (M,) of each example, and the groups' names.
    """
    (client, client_names), (example_group, group_names) = clients, groups
    counts = group_counts(client, example_group, (len(client_names), len(group_names)))
    several = torch.nonzero((counts > 0).sum(dim=1) > 1).flatten().tolist()
    if not several:
        return counts.argmax(dim=1), []
    named = quote(name for name, count in zip(group_names, counts[several[0]].tolist(), strict=True) if count)
    return counts.argmax(dim=1), [
        f"{name}: {len(several):,} of {len(counts):,} clients have rows of several groups, such as "
        f"'{client_names[several[0]]}' ({named}); each row keeps its group"
    ]


def similar_names(named: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield warnings of names that differ only by case or spaces.

    ``named`` has pairs of a plural noun and a list of names, such as ("clients", ["C1", "c1"]).

    >>> list(similar_names([("clients", ["C1", "c1", "c1 ", "c2"])]))
    ["the clients 'C1', 'c1', 'c1 ' are counted as 3, though their names differ only by case or spaces"]
    """
    for kind, names in named:
        spellings: dict[str, list[str]] = {}
        for name in names:
            spellings.setdefault("".join(name.split()).casefold(), []).append(name)
        several = [same for same in spellings.values() if len(same) > 1]
        for same in several[:3]:
            more = f" ({len(several)} such cases)" if len(several) > 3 else ""
            counted = f"{quote(same)} are counted as {len(same)}"
            yield f"the {kind} {counted}, though their names differ only by case or spaces{more}"


def numbered(names: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Number M names; return (M,) int64 and the distinct names in sorted order, where integers are sorted by size.

    >>> numbered(["10", "9", "10"])
    (tensor([1, 0, 1]), ('9', '10'))
    """
    distinct = set(names)
    integers = all(map(_INTEGER.fullmatch, distinct))
    ordered = tuple(sorted(distinct, key=lambda name: (int(name) if integers else 0, name)))
    number = {name: i for i, name in enumerate(ordered)}
    return torch.tensor([number[name] for name in names], dtype=torch.int64), ordered


def numbered_name(name_of: NameOf, numbers: Tensor, row: int) -> str:
    """Return the name of the example ``numbers[row]``."""
    return name_of(int(numbers[row]))


def file_row(file: str, number: int) -> str:
    """Return the name of a table's row in its file, where the header is row 1.

    >>> file_row("wards.csv", 0)
    'wards.csv row 2'
    """
    return f"{file} row {number + 2}"


def official_example(data_set: str, train_count: int, number: int) -> str:
    """Return the name of a published data set's example, by its position in the official split.

    >>> official_example("mnist", 60_000, 60_007)
    'mnist test[7]'
    """
    return f"{data_set} train[{number}]" if number < train_count else f"{data_set} test[{number - train_count}]"


def own_example(name: str, offsets: Tensor, row: int) -> str:
    """Return the name of an example in a list of clients, where client i has the rows from ``offsets[i]`` on.

    >>> own_example("clients", torch.tensor([0, 2, 5]), 3)
    'clients[1][1]'
    """
    client = int(torch.searchsorted(offsets, row, right=True)) - 1
    return f"{name}[{client}][{row - int(offsets[client])}]"


def class_warnings(name: str, names: Sequence[str], trained: Tensor, tested: Tensor) -> Iterator[str]:
    """Yield warnings about classes with too few training or test examples, from the labels (M,) of both sets.

    >>> [*class_warnings("mine", ["ill", "well"], torch.tensor([0, 0]), torch.tensor([0, 1]))]
    ["mine: no training example of the class 'well', so no model learns it"]
    """
    training, test = (torch.bincount(labels.cpu(), minlength=len(names)) for labels in (trained, tested))
    for wrong, sentence in (
        (training == 0, "no training example of the class {}, so no model learns it"),
        ((training == 1) & (test == 0), "only one example of the class {}, so no test example is left"),
        ((training != 1) & (test == 0), "no test example of the class {}, so accuracy does not cover it"),
    ):
        classes: list[int] = torch.nonzero(wrong).flatten().tolist()
        more = f" and {len(classes) - 10} more" if len(classes) > 10 else ""
        if classes:
            yield f"{name}: {sentence.format(quote([names[c] for c in classes[:10]]) + more)}"
