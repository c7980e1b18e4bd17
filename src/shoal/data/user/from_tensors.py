"""Conversion of a user's own tensors to the fields of a federation, for `Federation.from_tensors`."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoal.core.errors import InputError, describe, integer, quote, read_error, require, suggest
from shoal.core.formats import shorten
from shoal.core.settings import MAX_CLASSES, one_of
from shoal.data.names import EVERYBODY, class_warnings, own_example
from shoal.data.preferences import Preferences, per_client
from shoal.data.shards import GroupedExamples, Shards, to_channels_last
from shoal.data.user.arrays import Arrays, Examples, Task, group_names, integers_of, require_finite, tensors_of

LOG = logging.getLogger("shoal")

Limits = Tensor | Sequence[float] | float
"""One number for all clients, or one per client."""


@dataclass(frozen=True, eq=False)
class ClientArrays:
    """The examples of N clients in two arrays, ordered by client, for `Federation.from_tensors`.

    A memory-mapped ``x`` is never loaded as a whole and never written. A memory-mapped ``x`` must be float32, or int64
    for word numbers, and C-contiguous. Save pictures of several channels with the channels last, and pass
    ``numpy.load(path, mmap_mode="c").transpose(0, 3, 1, 2)``. The file must not change during the run.

    Args:
        x: the inputs (M, ...): a tensor, array or list, the path of a ``.npy`` file, or an array that numpy maps with
            ``mmap_mode="c"``.
        y: the labels (M,), or regression targets (M, d); the path of a ``.npy`` file is allowed.
        sizes: the number of examples of each client, N integers, or one integer for all clients.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> import numpy as np, shoal
        >>> with TemporaryDirectory() as folder:
        ...     path = Path(folder, "x.npy")
        ...     np.save(path, np.arange(6, dtype=np.float32)[:, None])
        ...     clients = shoal.ClientArrays(path, y=[0, 1, 0, 1, 0, 1], sizes=[2, 4])
        ...     federation = shoal.Federation.from_tensors(clients, test=([[0.5]], [1]))
        ...
        >>> federation.clients.sizes.tolist(), federation.clients.x[federation.clients.indices_of(0)].flatten().tolist()
        ([2, 4], [0.0, 1.0])
    """

    x: Any
    y: Any
    sizes: Sequence[int] | Tensor | np.ndarray | int

    def __repr__(self) -> str:
        x, y, sizes = map(_shape, (self.x, self.y, self.sizes))
        return shorten(f"ClientArrays({x}, {y}, sizes {sizes})")

    def shards(self, name: str, task: Task) -> Shards:
        """Return the N clients' examples without a copy of ``x``; the values of inputs and labels are not checked.

        Raises:
            InputError: a file is missing or damaged, or the numbers of examples, labels and sizes do not match.
        """
        x, y = _opened(self.x), _opened(self.y)
        mapped = isinstance(x, np.memmap)
        tensors = tensors_of(name, (_map_file(x, self.x) if mapped else x, y), task)
        return Shards.from_contiguous(*tensors, _sizes(name, self.sizes, len(tensors[1])), memory_mapped=mapped)


def fields_from_tensors(
    clients: Sequence[Arrays | Dataset] | ClientArrays,
    *,
    test: Arrays | Examples | Dataset,
    shadow: Arrays | Examples | Dataset | None,
    groups: Sequence[str] | None,
    holdout: Sequence[Arrays | Dataset] | ClientArrays | None,
    limits: tuple[Limits, Limits],
    classes: int | None,
    task: Task,
    class_names: Sequence[str] = (),
    row_groups: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the fields of `Federation` by name; see `Federation.from_tensors`.

    ``limits`` are the thresholds and the betas. ``class_names`` are names of the first classes, for warnings.
    ``row_groups`` has the group name of each training example if clients have examples of several groups; ``groups``
    then has each client's largest group.
    """
    require(task in get_args(Task), f"'task' must be {one_of(get_args(Task))} (got {task!r})")
    regression = task == "regression"
    require(classes is None or not regression, f"'classes' is not allowed in a regression (got {classes!r})")
    shards = _trained(clients, task)
    count, first = len(shards), (shards.x[:1], shards.y[:1])
    require(
        first[0].numel() > 0,
        f"the inputs of 'clients' must have at least one number per example (got shape {tuple(first[0].shape[1:])})",
    )
    if not regression:
        classes = _classes(shards) if classes is None else integer("classes", classes, "such as 10", 1)
        require(classes <= MAX_CLASSES, f"'classes' must be at most {MAX_CLASSES:,} (got {classes!r})")
    held_out = _held_out(holdout, task, shards)
    client_groups = [EVERYBODY] * count if groups is None else group_names("'groups'", groups, count)
    names = tuple(dict.fromkeys([*client_groups, *row_groups]))
    number = {name: g for g, name in enumerate(names)}
    group, row_group = (torch.tensor([number[name] for name in each]) for each in (client_groups, row_groups))
    require(
        isinstance(test, Examples) or len(names) == 1,
        f"'test' must be Examples(x, y, groups) in a federation with several groups (got {describe(test)})",
    )
    tested = _grouped("the test set", test, names, first, task)
    if isinstance(test, Examples) and test.clients is not None:
        tested = replace(tested, client=_test_clients(test.clients, tested, None if row_groups else group, count))
    require(len(tested) > 0, "the test set has no examples; give at least one")
    without = [name for g, name in enumerate(names) if not bool((tested.group == g).any())]
    require(not without, f"the test set must have examples of each group (got none of {quote(without)})")
    shadows = GroupedExamples(first[0][:0], first[1][:0], torch.empty(0, dtype=torch.int64))
    if shadow is not None:
        shadows = _grouped("the shadow set", shadow, names, first, task)
    for name, examples in (("client {}", shards), ("the holdout of client {}", held_out)):
        try:
            _check(name, examples.x, examples.y, classes)
        except InputError:  # all at once is fast; one by one names the client
            for i, rows in enumerate(examples.indices.split(examples.sizes.tolist())):
                _check(name.format(i), examples.x[rows], examples.y[rows], classes)
    for name, examples in (("the test set", tested), ("the shadow set", shadows)):
        _check(name, examples.x, examples.y, classes)
    if not regression:
        trained = shards.y[shards.indices]
        named = [*class_names, *map(str, range(len(class_names), 1 + int(max(trained.max(), tested.y.max()))))]
        for sentence in class_warnings("the federation", named, trained, tested.y):
            LOG.warning("%s", sentence)
    threshold, beta = limits
    return {
        "clients": shards,
        "ids": torch.arange(count),
        "group": group,
        "groups": names,
        "preferences": Preferences(per_client("threshold", threshold, count, 0.5), per_client("beta", beta, count, 0)),
        "test": tested,
        "shadow": shadows,
        "holdout": held_out,
        "classes": classes,
        "origins": {
            "clients": partial(own_example, "clients", shards.offsets),
            "holdout": partial(own_example, "holdout", held_out.offsets),
            "test": "test[{}]".format,
        },
        "own_inputs": True,
        "row_groups": {"clients": row_group, "holdout": row_group[:0]} if row_groups else {},
    }


def _classes(clients: Shards) -> int:
    """Return the number of classes, the largest label + 1."""
    largest = int(clients.y.max())
    require(
        largest < MAX_CLASSES,
        f"the labels of 'clients' must be below {MAX_CLASSES:,} (got {largest}); number "
        "the classes from 0, or set task='regression'",
    )
    return largest + 1


def _trained(clients: Sequence[Arrays | Dataset] | ClientArrays, task: Task) -> Shards:
    """Return the training examples; require at least one client, and one example per client."""
    if isinstance(clients, ClientArrays):
        shards = clients.shards("'clients'", task)
    else:
        sequence = isinstance(clients, Sequence) and not isinstance(clients, str)
        require(sequence, f"'clients' must be a list of pairs (x, y), one per client (got {describe(clients)})")
        require(len(clients) > 0, "'clients' must have at least one client (got none)")
        shards = _joined("client {}", clients, task, None)
    require(len(shards) > 0, "'sizes' of 'clients' must have at least one number (got none)")
    without = torch.nonzero(shards.sizes == 0).flatten()
    require(len(without) == 0, f"client {without[:1].sum()} has no examples; give at least one")
    return shards


def _held_out(holdout: Sequence[Arrays | Dataset] | ClientArrays | None, task: Task, clients: Shards) -> Shards:
    """Return the clients' hold-out examples."""
    first, count = (clients.x[:1], clients.y[:1]), len(clients)
    if holdout is None:
        return Shards.from_contiguous(clients.x[:0], clients.y[:0], torch.zeros(count, dtype=torch.int64))
    if isinstance(holdout, ClientArrays):
        shards = holdout.shards("'holdout'", task)
        _require_shapes("the holdout", (shards.x, shards.y), first)
        require(len(shards) == count, f"'holdout' must have {count} clients, like 'clients' (got {len(shards)})")
        return shards
    require(len(holdout) == count, f"'holdout' must have one (x, y) for each of {count} clients (got {len(holdout)})")
    return _joined("the holdout of client {}", holdout, task, first)


def _joined(name: str, values: Sequence[Arrays | Dataset], task: Task, first: tuple[Tensor, Tensor] | None) -> Shards:
    """Convert the clients' examples, which must have the shapes of ``first``, by default of client 0's examples."""
    pairs = []
    for i, value in enumerate(values):
        pairs.append(tensors_of(name.format(i), value, task))
        if first is None:
            require(len(pairs[i][1]) > 0, f"client {i} has no examples; give at least one")
        _require_shapes(name.format(i), pairs[i], first or pairs[0])
    return Shards.from_pairs(pairs)


def _require_shapes(name: str, pair: tuple[Tensor, Tensor], first: tuple[Tensor, Tensor]) -> None:
    for kind, tensor, like in zip(("examples", "labels"), pair, first, strict=True):
        shape, expected = tuple(tensor.shape[1:]), tuple(like.shape[1:])
        fits = shape == expected or len(tensor) == 0
        require(fits, f"the {kind} of {name} must have shape {expected}, like client 0's (got {shape})")


def _grouped(
    name: str, value: Arrays | Examples | Dataset, groups: tuple[str, ...], first: tuple[Tensor, Tensor], task: Task
) -> GroupedExamples:
    """Convert a test or shadow set; without group names, all examples are in the first group."""
    x, y = tensors_of(name, (value.x, value.y) if isinstance(value, Examples) else value, task)
    _require_shapes(name, (x, y), first)
    if not isinstance(value, Examples):
        return GroupedExamples(x, y, torch.zeros(len(y), dtype=torch.int64))
    names = group_names(f"the groups of {name}", value.groups, len(y))
    for group in dict.fromkeys(names):
        require(
            group in groups,
            f"{name} has examples of the group '{group}', but no client is in this group; {suggest(group, groups)}",
        )
    index = {group: g for g, group in enumerate(groups)}
    return GroupedExamples(x, y, torch.tensor([index[group] for group in names], dtype=torch.int64))


def _test_clients(value: object, tested: GroupedExamples, group: Tensor | None, count: int) -> Tensor:
    """Check `Examples.clients` of the test set; ``group`` (N,) is None if clients have several groups."""
    form = f"the 'clients' of the test set must be {len(tested)} integers from -1 to {count - 1}"
    client = integers_of(value, form)
    require(client.shape == (len(tested),), f"{form} (got {describe(value)})")
    strangers = client[(client < -1) | (client >= count)]
    require(len(strangers) == 0, f"{form} (got {strangers[:1].sum()})")
    wrong = client[:0] if group is None else torch.nonzero((client >= 0) & (group[client] != tested.group)).flatten()
    require(
        len(wrong) == 0,
        f"the test examples of client {client[wrong[:1]].sum()} must be in the client's group",
    )
    return client


def _check(name: str, x: Tensor, y: Tensor, classes: int | None) -> None:
    """Raise `InputError` unless inputs are finite, and labels are in ``range(classes)`` (in a regression, finite)."""
    require_finite(name, x)
    if classes is None:
        require_finite(name, y, "labels")
        return
    wrong = y[(y < 0) | (y >= classes)]
    require(len(wrong) == 0, f"the labels of {name} must be from 0 to {classes - 1} (got {wrong[:1].sum()})")


def _shape(value: object) -> str:
    shape = getattr(value, "shape", None)
    return describe(str(value) if _is_path(value) else value) if shape is None else f"{tuple(shape)}"


def _is_path(value: object) -> bool:
    """Return whether ``value`` is a file path."""
    return isinstance(value, str | os.PathLike)


def _opened(value: Any) -> object:  # noqa: ANN401
    """Map the file at a path copy-on-write; return any other value unchanged."""
    if not _is_path(value):
        return value
    path = Path(value)
    try:
        return np.lib.format.open_memmap(path, mode="c")
    except OSError as error:
        raise InputError(f"{path}: the file cannot be read: {read_error(path, error)}") from error
    except ValueError as error:
        raise InputError(
            f"{path}: the file must be a complete .npy file of numbers, as written by numpy.save "
            f"({str(error).strip().partition(chr(10))[0]})"
        ) from error


def _map_file(array: np.memmap, value: object) -> Tensor:
    """Return a tensor that shares the mapped array's memory.

    Raises:
        InputError: the array would have to be copied, or its file could be written.
    """
    name = value if _is_path(value) else getattr(array, "filename", None) or "the mapped array"
    require(
        array.mode == "c",
        f"{name}: the array must be mapped copy-on-write (got the mode '{array.mode}'); use "
        "numpy.load(path, mmap_mode='c')",
    )
    require(
        array.dtype in (np.dtype(np.float32), np.dtype(np.int64)),
        f"{name}: inputs in a mapped file must be float32, or int64 for words of texts (got {array.dtype})",
    )
    x = torch.from_numpy(array)
    order = "C-contiguous"
    if x.dim() == 4 and x.shape[1] > 1:
        order = (
            "saved as pictures (examples, height, width, channels) and passed as "
            'numpy.load(path, mmap_mode="c").transpose(0, 3, 1, 2)'
        )
    require(to_channels_last(x).is_contiguous(), f"{name}: inputs in a mapped file must be {order}")
    return x


def _sizes(name: str, value: object, examples: int) -> Tensor:
    """Return the clients' sizes, (N,) int64, which must sum to ``examples``."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        size = int(value)
        require(
            size >= 1 and examples % size == 0,
            f"'sizes' of {name} must divide the {examples} examples (got {size}); or give one size per client",
        )
        return torch.full((examples // size,), size)
    form = f"'sizes' of {name} must be integers from 0, one for each client"
    sizes = integers_of(value, form)
    require(sizes.dim() == 1 and not bool((sizes < 0).any()), f"{form} (got {describe(value)})")
    total = int(sizes.sum())
    require(total == examples, f"'sizes' of {name} must sum to the number of examples, {examples} (got {total})")
    return sizes
