"""Names of examples by their place in the user's data: a row of a file, a picture's path, a place in a tensor.

They are functions of an example's number, so that no unused names are held; and partial applications of the functions
here, so that a federation can be pickled.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

NameOf = Callable[[int], str]
"""Maps the number of an example to its name."""

Origins = Mapping[str, NameOf]
"""The names of the rows of a federation's examples, by the part that they are in: clients, holdout, test."""


def numbered_name(name_of: NameOf, numbers: Tensor, row: int) -> str:
    """The name of the ``row``-th of examples with these ``numbers`` (m,)."""
    return name_of(int(numbers[row]))


def file_row(file: str, number: int) -> str:
    """A row of a table, counted as the file does: its header is row 1.

    >>> file_row("wards.csv", 0)
    'wards.csv row 2'
    """
    return f"{file} row {number + 2}"


def official_example(data_set: str, train_count: int, number: int) -> str:
    """An example of a published data set, by its place in the official split.

    >>> official_example("mnist", 60_000, 60_007)
    'mnist test[7]'
    """
    return f"{data_set} train[{number}]" if number < train_count else f"{data_set} test[{number - train_count}]"


def own_example(name: str, offsets: Tensor, row: int) -> str:
    """A place in the tensors of a list of clients, where client i has the rows from ``offsets[i]`` on.

    >>> own_example("clients", torch.tensor([0, 2, 5]), 3)
    'clients[1][1]'
    """
    client = int(torch.searchsorted(offsets, row, right=True)) - 1
    return f"{name}[{client}][{row - int(offsets[client])}]"
