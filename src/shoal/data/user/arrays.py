"""A user's arrays, lists, PyTorch data sets and pictures as tensors.

Labels are classes, or the targets of a regression. What cannot be examples is an `InputError` that names the client and
says what is allowed.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import AfterValidator
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from shoal.core.errors import InputError, describe, quote, require
from shoal.core.formats import one_line, shorten
from shoal.core.settings import Flag, settings
from shoal.data.datasets import ImageDataset, Impute, LabelledDataset, TableDataset, TextDataset
from shoal.data.names import require_group_names

Arrays = tuple[Any, Any]
"""Inputs (m, ...) and labels (m,): tensors, numpy arrays or lists."""

LARGEST = 1e100
"""Numbers from which a column of inputs or targets cannot be standardised: their squares are infinite."""

Task = Literal["classification", "regression"]
"""Labels as classes or as numbers to be predicted. Labels alone do not say which: prices may be integers."""

ArrayTable = Any
"""A pandas frame, or a `datasets.Dataset` of Hugging Face, which need not be installed."""

_LABELS = ("label", "labels")
"""The keys of labels in batches of Hugging Face's data sets."""

_PADDED = "pad them to one, as torch.nn.utils.rnn.pad_sequence does, by a number that network and loss take for padding"

_PACKED = (
    "x is one tensor, so several inputs are packed into it, such as torch.cat([a, b], dim=1), and the network's "
    "forward takes them apart"
)


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples, with the name of the group of each.

    Args:
        x: inputs (M, ...).
        y: labels (M,), integers from 0; of a regression (M,) or (M, d) numbers.
        groups: (M,) names, in any order; a list or a numpy array of strings.
        clients: (M,) integers, the client of each example, -1: none; None: unknown. An audit then compares a client's
            training examples with its own test examples alone.
    """

    x: Any
    y: Any
    groups: Sequence[str]
    clients: Sequence[int] | Tensor | np.ndarray | None = None

    def __repr__(self) -> str:
        return shorten(f"Examples({len(self.y)} examples of {', '.join(map(str, dict.fromkeys(self.groups)))})")


def _column_and_values(rows: tuple[str, ...]) -> tuple[str, ...]:
    if len(rows) < 2:
        raise ValueError("a column and the values whose rows are used")
    return rows


@settings
class Columns:
    """The meaning of a table's columns.

    Args:
        client: the column with the names of the clients.
        label: the column of labels, words, codes or integers, which are numbered in sorted order; in Python with
            ``classes`` integers are classes as they are.
        group: the column with names of groups; None: one group. Where a client has rows of several, such as two sexes,
            figures by group are of each client's rows of it.
        inputs: the columns of inputs, in this order; None: all others that hold numbers and, with ``one_hot``, 2 to 20
            different words. Numbers are standardised by mean and standard deviation of the clients' training rows. In
            Python one column may hold images or lists of one shape, which stay as they are.
        one_hot: whether columns of words are inputs too: 1 for the row's word, 0 for the other words of training rows.
        rows: a column and the values whose rows are used, such as ["grade", "3"]; None: all rows.
        impute: the replacement of empty cells: the ``mean``, the ``median`` or the ``most-frequent`` value of the
            column's training rows, in a column of words always the most frequent; None: an empty cell is an error.

    Raises:
        InputError: a name that is not text; the label as the client, the group or an input, or an input twice.
    """

    client: str
    label: str
    group: str | None = None
    inputs: tuple[str, ...] | None = None
    one_hot: Flag = True
    impute: Impute | None = None
    rows: Annotated[tuple[str, ...], AfterValidator(_column_and_values)] | None = None
    __repr__ = one_line

    def __post_init__(self) -> None:
        for name, other in (("client", self.client), ("group", self.group)):
            require(other != self.label, f"'label' and '{name}' are the same column, '{self.label}'; name two")
        inputs = self.inputs or ()
        often = Counter(inputs)
        for name in inputs:
            used = name in (self.client, self.label, self.group)
            require(not used, f"'inputs' has the column '{name}', which is the client, label or group")
            require(often[name] == 1, f"'inputs' has the column '{name}' twice; once is allowed")


def tensors_of(name: str, value: object, task: Task = "classification") -> tuple[Tensor, Tensor]:
    """Inputs (m, ...) and labels of examples.

    Labels are (m,) int64; of a regression (m, d) float32, also where there is one number per example: losses would
    broadcast (m,) against outputs (m, 1).

    Args:
        name: the name of the examples in sentences, such as "client 3".
        value: a pair (x, y), a data set of PyTorch that gives pairs, or a `DataLoader` whose batches are pairs or
            dictionaries of the inputs, under any key, and ``label`` or ``labels``.
        task: what labels are.

    Raises:
        InputError: they cannot be converted, or differ in number.
    """
    if isinstance(value, DataLoader):
        value = _pair_of_loader(name, value)
    elif isinstance(value, Dataset):
        require(isinstance(value, Sized), f"{name} is a data set without a length; give one with __len__")
        rows = [value[i] for i in range(len(value))]  # pyright: ignore[reportArgumentType]
        pairs = all(isinstance(row, tuple | list) and len(row) == 2 for row in rows)
        require(pairs, f"{name} is a data set whose items are not pairs (x, y); {_PACKED}")
        labels = [y.tolist() if isinstance(y, Tensor | np.ndarray | np.generic) else y for _, y in rows]
        value = stack_inputs(name, [x for x, _ in rows]), labels
    more = f"; {_PACKED}" if isinstance(value, tuple | list | dict) else ""
    if not isinstance(value, tuple | list) or len(value) != 2:
        kinds = "a pair (x, y), a torch.utils.data.Dataset of such pairs or a DataLoader"
        raise InputError(f"{name} must be {kinds}; got {describe(value)}{more}")
    given: Any = value[0]
    pictures = isinstance(given, list | tuple) and any(map(_is_picture, given))
    x = _inputs(f"the inputs of {name}", stack_inputs(name, given) if pictures else given)
    y = (_targets if task == "regression" else _labels)(f"the labels of {name}", value[1])
    require(len(x) == len(y), f"{name} has {len(x)} examples but {len(y)} labels")
    return x, y


def labelled_arrays(name: str, x: object, y: object) -> LabelledDataset:
    """A data set of inputs and labels (M,), integers from 0, without an official split.

    Inputs are images (M, C, H, W) or (M, H, W) of bytes, or of numbers in [0, 1]; rows (M, F) of floats, or a pandas
    frame of numbers; or texts (M, L), words numbered from 1 by integers and padded by 0. Others are an `InputError`.

    >>> labelled_arrays("notes", [[3, 1], [2, 0]], [0, 1]).kind, labelled_arrays("wine", [[0.5], [0.7]], [0, 1]).kind
    ('texts', 'rows')
    """
    white = 255 if getattr(x, "dtype", None) in (torch.uint8, np.uint8) else 1
    if hasattr(x, "columns"):
        try:
            x = np.asarray(x, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the inputs of {name} must be columns of numbers: {error}; leave the others out"
            ) from error
    inputs, labels = tensors_of(name, (x, y))
    require(len(labels) > 0, f"{name} has no examples; at least one is needed")
    require_finite(name, inputs)
    require(int(labels.min()) >= 0, f"{name} has the label {labels.min()}; labels are integers from 0")
    count, classes = len(labels), int(labels.max()) + 1
    if inputs.dim() == 2 and inputs.is_floating_point():
        return TableDataset(name, inputs, labels, count, classes)
    if inputs.dim() == 2:
        require(int(inputs.min()) >= 0, f"{name} has the word {inputs.min()}; words are numbered from 1, padded by 0")
        return TextDataset(name, inputs, int(inputs.max()), labels, count, classes)
    require(
        inputs.dim() in (3, 4),
        f"{name} has inputs of shape {tuple(inputs.shape[1:])}; images are (C, H, W), rows (F,), texts (L,)",
    )
    low, high = float(inputs.min()), float(inputs.max())
    require(low >= 0 and high <= white, f"{name} has images of numbers from {low:g} to {high:g}; give bytes, or [0, 1]")
    images = inputs if inputs.dim() == 4 else inputs[:, None]
    return ImageDataset(name, images if white == 1 else images.to(torch.uint8), white, labels, count, classes)


def require_finite(name: str, x: Tensor, kind: str = "inputs") -> None:
    """Raise `InputError` where ``kind`` (m, ...) have a number that is not finite."""
    if x.is_floating_point() and not bool(torch.isfinite(x.sum())):
        wrong = int((~torch.isfinite(x.flatten(1) if x.dim() > 1 else x[:, None])).any(dim=1).sum())
        require(wrong == 0, f"{name} has {kind} that are NaN or infinite, in {wrong} of {len(x)} examples")


def integers_of(value: object, form: str) -> Tensor:
    """A copy of integers as int64, of any shape; others are an `InputError` that says what they must be, ``form``."""
    wrong = f"{form}; got {describe(value)}"
    try:
        numbers = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(wrong) from error
    require(not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool), wrong)
    return numbers.to("cpu", torch.int64, copy=True)


def group_names(name: str, value: object, count: int) -> list[str]:
    """The ``count`` names of groups in ``value``, which sentences call ``name``.

    Raises:
        InputError: codes instead of names, another number of them, or names that cannot be used.
    """
    codes = isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "iufb")
    if codes or isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(
            f"{name} must be a list of names, such as ['north', 'south', ...], since codes do not say which group they "
            f"mean; got {describe(value)}"
        )
    names: list[Any] = [str(group) if isinstance(group, np.str_) else group for group in value]
    require(len(names) == count, f"{name} must be {count} names; got {len(names)}")
    require_group_names(dict.fromkeys(names))
    return names


def stack_inputs(name: str, values: Sequence[object]) -> Tensor:
    """Single inputs of one shape as one tensor; pictures of PIL, by `grey_or_rgb`, as (C, H, W) in [0, 1]."""
    require(not any(map(_is_several, values)), f"{name} has inputs of several tensors; {_PACKED}")
    arrays = [value.numpy(force=True) if isinstance(value, Tensor) else _array(name, value) for value in values]
    shapes = sorted({array.shape for array in arrays})
    require(len(shapes) <= 1, f"{name} has inputs of different shapes: {', '.join(map(str, shapes[:3]))}; {_PADDED}")
    return torch.as_tensor(np.stack(arrays)) if arrays else torch.empty(0)


def grey_or_rgb(picture: Any, channels: Literal[1, 3] | None = None) -> Any:  # noqa: ANN401 - of Pillow, an extra
    """A picture of PIL in mode L or RGB as Pillow converts it, without transparency.

    ``channels``: 1 for grey, 3 for RGB; None: grey in the modes 1, L and LA, RGB in others.

    Raises:
        ValueError: more than 8 bits per channel, which Pillow would cut off, or a mode that Pillow does not convert.
    """
    mode = picture.mode
    if mode.startswith(("I", "F")):
        raise ValueError(f"more than 8 bits per channel, Pillow's mode {mode}; 8 bits are allowed")
    return picture.convert("L" if (channels or (1 if mode in ("1", "L", "LA") else 3)) == 1 else "RGB")


def _pair_of_loader(name: str, loader: DataLoader[Any]) -> tuple[Tensor, Tensor]:
    """Inputs (m, ...) and labels (m,) of all batches, in the loader's order."""
    pairs = [_pair(name, batch) for batch in loader]
    require(bool(pairs), f"{name} is a data loader without batches")
    xs, ys = zip(*pairs, strict=True)
    return torch.cat(xs), torch.cat(ys)


def _pair(name: str, batch: object) -> tuple[Tensor, Tensor]:
    allowed = f"give batches that are pairs (x, y) of tensors, or dictionaries of inputs and {quote(_LABELS)}"
    if isinstance(batch, Mapping):
        labels = [key for key in batch if key in _LABELS]
        found = f"{name} is a data loader of batches with {quote(map(str, batch))}; {allowed}"
        require(len(batch) == 2 and len(labels) == 1, found)
        batch = [*(values for key, values in batch.items() if key not in _LABELS), batch[labels[0]]]
    pair = isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
    require(pair, f"{name} is a data loader of batches of {describe(batch)}; {allowed}")
    x, y = batch  # pyright: ignore[reportGeneralTypeIssues]
    return x, y


def _is_picture(value: object) -> bool:
    return hasattr(value, "getbands")


def _array(name: str, value: object) -> np.ndarray:
    if not _is_picture(value):
        return np.asarray(value)
    try:
        pixels = np.asarray(grey_or_rgb(value))
    except ValueError as error:
        raise InputError(f"{name} has a picture that cannot be read ({error}); give an array of numbers") from error
    return np.atleast_3d(pixels).transpose(2, 0, 1).astype(np.float32) / 255


def _is_several(value: object) -> bool:
    """Whether several inputs are meant: a dictionary, or a tuple of arrays, which would be stacked as examples."""
    arrays = isinstance(value, tuple) and any(isinstance(item, Tensor | np.ndarray) and item.ndim for item in value)
    return isinstance(value, dict) or arrays


def _inputs(name: str, value: object) -> Tensor:
    """Inputs (m, ...): floats, bytes and truth values as float32, integers as int64 (words of a text)."""
    require(not _is_several(value), f"{name} are several: {describe(value)}; {_PACKED}")
    nested = isinstance(value, Tensor) and value.is_nested
    require(not nested, f"{name} must be of one shape; got a nested tensor; {_PADDED}")
    x = _tensor(name, value)
    require(x.dim() > 0, f"{name} must be one row per example; got a single number")
    require(not x.is_complex(), f"{name} must be real numbers; got {x.dtype}")
    floats = x.is_floating_point() or x.dtype in (torch.bool, torch.uint8)
    return x.to(torch.float32 if floats else torch.int64)


def _labels(name: str, value: object) -> Tensor:
    """Labels (m,) int64, of integers of any type, also as a column (m, 1); one-hot rows (m, C) by their place."""
    y = _tensor(name, value).detach()
    if y.dtype == torch.int64 and y.dim() == 1:
        return y
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dim() == 2 and y.numel() and bool(((y == 0) | (y == 1)).all() & (y.sum(dim=1) == 1).all()):
        y = y.to(torch.int64).argmax(dim=1)
    require(
        y.dim() == 1,
        f"{name} must be one number per example; got shape {tuple(y.shape)}; several labels of an example are given "
        "with task='regression' and a loss and a metric of your own",
    )
    require(
        not y.is_complex() and bool((y == y.to(torch.int64)).all()),
        f"{name} must be integers from 0; got {y.dtype} such as {y.flatten()[:1].tolist()}; numbers to be predicted "
        "are given with task='regression'",
    )
    return y.to(torch.int64)


def _targets(name: str, value: object) -> Tensor:
    """The labels (m, d) float32 of a regression, from (m,) or (m, d) numbers of any type."""
    y = _tensor(name, value)
    require(not y.is_complex(), f"{name} must be real numbers; got {y.dtype}")
    require(
        y.dim() in (1, 2) and (y.dim() == 1 or y.shape[1] > 0),
        f"{name} must be one number per example, or (m, d); got shape {tuple(y.shape)}; a loss and a metric of your "
        "own may reshape the rows of d numbers",
    )
    return (y[:, None] if y.dim() == 1 else y).detach().to(torch.float32)


def _tensor(name: str, value: object) -> Tensor:
    """A tensor, list, numpy array or pandas column as a tensor."""
    sparse = value.layout != torch.strided if isinstance(value, Tensor) else hasattr(value, "toarray")
    require(not sparse, f"{name} are sparse; give them dense, by to_dense() in PyTorch and toarray() in SciPy")
    if isinstance(value, Tensor):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(
            f"{name} must be numbers of one shape; got {describe(value)} of different lengths; {_PADDED}"
        ) from error
    numbers = array.dtype.kind in "iufb"
    example = f" such as {array.flat[:1].tolist()[0]!r}" if array.size and not numbers else ""
    require(numbers, f"{name} must be numbers; got {describe(value)}{example}; number names from 0")
    return torch.as_tensor(array.copy() if not array.flags.writeable else array)
