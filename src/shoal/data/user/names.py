"""Names of clients, classes and groups that examples have, as numbers."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from shoal.core.errors import quoted, require


def groups_of_clients(name: str, clients: tuple[Tensor, Sequence[str]], groups: tuple[Tensor, Sequence[str]]) -> Tensor:
    """(N,) int64, the group of each client; both are given by the (M,) numbers of each example, and their names.

    Raises:
        InputError: a client in several groups.
    """
    (client, client_names), (of_example, group_names) = clients, groups
    group = torch.zeros(len(client_names), dtype=torch.int64)
    group[client] = of_example
    moved = torch.nonzero(group[client] != of_example).flatten()
    if len(moved):
        whose = int(client[moved[0]])
        several = quoted(group_names[int(g)] for g in of_example[client == whose].unique().tolist())
        require(False, f"{name} has the client '{client_names[whose]}' in several groups: {several}; one is needed")
    return group


def alike(named: Iterable[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Sentences on different names that differ only by case or by spaces; ``named`` has them by what they are of.

    >>> list(alike([("clients", ["C1", "c1", "c1 ", "c2"])]))
    ["the clients 'C1', 'c1', 'c1 ' are counted as 3, though their names differ only by case or spaces"]
    """
    for what, names in named:
        same: dict[str, list[str]] = {}
        for each in names:
            same.setdefault("".join(each.split()).casefold(), []).append(each)
        several = [each for each in same.values() if len(each) > 1]
        for each in several[:3]:
            more = f" ({len(several)} such cases)" if len(several) > 3 else ""
            several_names = f"{quoted(each)} are counted as {len(each)}"
            yield f"the {what} {several_names}, though their names differ only by case or spaces{more}"


def numbered(names: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """The number of each of M names (M,) int64, and the distinct names in sorted order: whole numbers by size.

    >>> numbered(["10", "9", "10"])
    (tensor([1, 0, 1]), ('9', '10'))
    >>> numbered(["ill", "healthy"])
    (tensor([1, 0]), ('healthy', 'ill'))
    """
    distinct = set(names)
    if all(each.lstrip("-").isdecimal() for each in distinct):
        ordered = tuple(sorted(distinct, key=lambda each: (float(each), each)))
    else:
        ordered = tuple(sorted(distinct))
    number = {each: i for i, each in enumerate(ordered)}
    return torch.tensor([number[each] for each in names], dtype=torch.int64), ordered
