"""The examples of all clients in two arrays, client after client: in memory, or in files that are memory-mapped."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shoal.core.errors import InputError, described, require, unread
from shoal.core.representation import shortened
from shoal.data.memory_format import to_channels_last
from shoal.data.shards import Shards
from shoal.data.user.arrays import Task, integers_of, tensors_of


@dataclass(frozen=True, eq=False)
class ClientArrays:
    """Examples of N clients in two arrays, client after client, for `Federation.from_tensors`.

    A memory-mapped ``x`` is read when and where it is needed, and never written: the path of a ``.npy`` file, or an
    array of `numpy.load` with ``mmap_mode="c"`` or of `numpy.memmap` with ``mode="c"``. It is used as it lies, so it
    must be float32 (int64: words of texts), example after example; pictures of several channels lie channels last, and
    are given as ``numpy.load(path, mmap_mode="c").transpose(0, 3, 1, 2)``. A file must not change while it is used.

    Args:
        x: inputs (M, ...): a tensor, array or list, or mapped.
        y: labels (M,) or, of a regression, (M, d); also the path of a ``.npy`` file.
        sizes: (N,) integers, the number of examples of each client, the first ones being client 0's; one number: all
            have as many.

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
        >>> federation.clients.sizes.tolist(), federation.clients.x[federation.clients.owned(0)].flatten().tolist()
        ([2, 4], [0.0, 1.0])
    """

    x: Any
    y: Any
    sizes: Sequence[int] | Tensor | np.ndarray | int

    def __repr__(self) -> str:
        x, y, sizes = map(_shape, (self.x, self.y, self.sizes))
        return shortened(f"ClientArrays({x}, {y}, sizes {sizes})")

    def shards(self, name: str, task: Task) -> Shards:
        """The N clients' examples, not yet checked for numbers and labels that cannot be used; ``x`` is not copied.

        Raises:
            InputError: a file that is missing, cut off or of another form; or examples, labels and sizes that do not
                match.
        """
        x, y = _opened(self.x), _opened(self.y)
        mapped = isinstance(x, np.memmap)
        tensors = tensors_of(name, (_mapped_tensor(x, self.x) if mapped else x, y), task)
        return Shards.from_contiguous(*tensors, _sizes(name, self.sizes, len(tensors[1])), mapped=mapped)


def _shape(value: object) -> str:
    shape = getattr(value, "shape", None)
    return described(str(value) if _is_path(value) else value) if shape is None else f"{tuple(shape)}"


def _is_path(value: object) -> bool:
    """Whether an array is given by the path of its file."""
    return isinstance(value, str | os.PathLike)


def _opened(value: Any) -> object:  # noqa: ANN401
    """A file by its path, mapped copy on write; anything else as it is."""
    if not _is_path(value):
        return value
    path = Path(value)
    try:
        return np.lib.format.open_memmap(path, mode="c")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {unread(path, error)}") from error
    except ValueError as error:
        raise InputError(
            f"{path}: must be a whole .npy file of numbers, as numpy.save writes it; it is of another form, or cut off "
            f"({str(error).strip().partition(chr(10))[0]})"
        ) from error


def _mapped_tensor(array: np.memmap, value: object) -> Tensor:
    """A mapped array as a tensor over the same memory.

    Raises:
        InputError: it would have to be copied, or the file could be written.
    """
    name = value if _is_path(value) else getattr(array, "filename", None) or "the mapped array"
    require(
        array.mode == "c",
        f"{name}: must be mapped copy on write, as numpy.load(path, mmap_mode='c') does, so that nothing changes the "
        f"file; got the mode '{array.mode}'",
    )
    require(
        array.dtype in (np.dtype(np.float32), np.dtype(np.int64)),
        f"{name}: has numbers of type {array.dtype}; a mapped file is used as it lies, so its inputs must be float32, "
        "or int64 for words of texts",
    )
    x = torch.from_numpy(array)
    order = "its examples must lie one after another, in the order of C"
    if x.dim() == 4 and x.shape[1] > 1:
        order = (
            "pictures of several channels must be saved as (examples, height, width, channels) and given as "
            'numpy.load(path, mmap_mode="c").transpose(0, 3, 1, 2)'
        )
    require(to_channels_last(x).is_contiguous(), f"{name}: a mapped file is used as it lies, so {order}")
    return x


def _sizes(name: str, value: object, examples: int) -> Tensor:
    """(N,) int64, of ``examples`` in all."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        size = int(value)
        require(
            size >= 1 and examples % size == 0,
            f"'sizes' of {name} must divide its {examples} examples, or be one number for each client; got {size}",
        )
        return torch.full((examples // size,), size)
    form = f"'sizes' of {name} must be integers from 0, one for each client"
    sizes = integers_of(value, form)
    require(sizes.dim() == 1 and not bool((sizes < 0).any()), f"{form}; got {described(value)}")
    total = int(sizes.sum())
    require(total == examples, f"'sizes' of {name} sum to {total}, but it has {examples} examples")
    return sizes
