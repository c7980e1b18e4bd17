"""Conversion of a user's arrays, lists, PyTorch data sets and pictures to tensors.

Input that cannot be converted raises an `InputError` that names the client and the allowed input.
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
"""The bound for absolute values of inputs and targets, so that their squares stay finite."""

Task = Literal["classification", "regression"]
"""Whether labels are classes or numbers to predict. Integers may be either, such as prices."""

ArrayTable = Any
"""A pandas frame, or a `datasets.Dataset` of Hugging Face, which need not be installed."""

_LABELS = ("label", "labels")
"""The label keys in batches of Hugging Face data sets."""

_PADDED = "pad the arrays to one shape, for instance with torch.nn.utils.rnn.pad_sequence"

_PACKED = (
    "pack several inputs into one tensor x, for instance with torch.cat([a, b], dim=1), and split x in the network"
)


@dataclass(frozen=True, eq=False)
class Examples:
    """Labelled examples with the name of each example's group.

    Args:
        x: the inputs (M, ...).
        y: the labels (M,), integers from 0; regression targets (M,) or (M, d).
        groups: the group name of each example, M strings.
        clients: the client of each example, M integers; -1 means no client, and None means unknown. If clients are
            known, an audit compares a client's training examples only with the same client's test examples.
    """

    x: Any
    y: Any
    groups: Sequence[str]
    clients: Sequence[int] | Tensor | np.ndarray | None = None

    def __repr__(self) -> str:
        return shorten(f"Examples({len(self.y)} examples of {', '.join(map(str, dict.fromkeys(self.groups)))})")


def _column_and_values(rows: tuple[str, ...]) -> tuple[str, ...]:
    if len(rows) < 2:
        raise ValueError("a column and its allowed values")
    return rows


@settings
class Columns:
    """The meaning of a table's columns.

    Args:
        client: the column with the clients' names.
        label: the column with the labels: words, codes or integers. Shoal sorts the labels and numbers them from 0. In
            Python, the argument ``classes`` keeps integers as class numbers.
        group: the column with the groups' names; by default all rows are in one group. The rows of
            one client may belong to different groups.
        inputs: the input columns, in this order. The default is all other columns of numbers and, with ``one_hot``, all
            other columns with 2 to 20 different words. Numbers are standardised by the mean and standard deviation of
            the clients' training rows. In Python, a single input column may contain images or lists of equal shape,
            which Shoal does not standardise.
        one_hot: whether columns of words become inputs: one 0/1 input per word in the training rows.
        rows: a column and its allowed values, such as ["grade", "3"]; other rows are left out.
        impute: the statistic of the column's training rows that replaces empty cells. Columns of words always use the
            most frequent value. By default, an empty cell is an error.

    Raises:
        InputError: a name is not text, an input is named twice, or the label is also the client, the group or an input.
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
            require(
                other != self.label, f"'label' and '{name}' must be different columns (got '{self.label}' for both)"
            )
        inputs = self.inputs or ()
        often = Counter(inputs)
        for name in inputs:
            used = name in (self.client, self.label, self.group)
            require(not used, f"'inputs' must not name the client, label or group column (got '{name}')")
            require(often[name] == 1, f"'inputs' must name each column once (got '{name}' twice)")


def tensors_of(name: str, value: object, task: Task = "classification") -> tuple[Tensor, Tensor]:
    """Convert examples to inputs (m, ...) and labels.

    Labels are (m,) int64. Regression targets are (m, d) float32 even for d = 1, because losses would broadcast (m,)
    against outputs (m, 1).

    Args:
        name: the name of the examples in error messages, such as "client 3".
        value: a pair (x, y), a PyTorch data set of pairs, or a `DataLoader`. The loader's batches are pairs, or
            dictionaries with the labels under ``label`` or ``labels`` and the inputs under any key.
        task: "classification" or "regression".

    Raises:
        InputError: the examples cannot be converted, or the numbers of inputs and labels differ.
    """
    if isinstance(value, DataLoader):
        value = _pair_of_loader(name, value)
    elif isinstance(value, Dataset):
        require(isinstance(value, Sized), f"{name} must be a data set with a length; add the method __len__")
        rows = [value[i] for i in range(len(value))]  # pyright: ignore[reportArgumentType]
        pairs = all(isinstance(row, tuple | list) and len(row) == 2 for row in rows)
        require(pairs, f"{name} must be a data set of pairs (x, y); {_PACKED}")
        labels = [y.tolist() if isinstance(y, Tensor | np.ndarray | np.generic) else y for _, y in rows]
        value = stack_inputs(name, [x for x, _ in rows]), labels
    more = f"; {_PACKED}" if isinstance(value, tuple | list | dict) else ""
    if not isinstance(value, tuple | list) or len(value) != 2:
        kinds = "a pair (x, y), a torch.utils.data.Dataset of such pairs or a DataLoader"
        raise InputError(f"{name} must be {kinds} (got {describe(value)}){more}")
    given: Any = value[0]
    pictures = isinstance(given, list | tuple) and any(map(_is_picture, given))
    x = _inputs(f"the inputs of {name}", stack_inputs(name, given) if pictures else given)
    y = (_targets if task == "regression" else _labels)(f"the labels of {name}", value[1])
    require(len(x) == len(y), f"{name} must have one label per example (got {len(x)} examples and {len(y)} labels)")
    return x, y


def labelled_arrays(name: str, x: object, y: object) -> LabelledDataset:
    """Create a data set without an official split from inputs and integer labels (M,).

    Inputs are images, rows or texts. Images are (M, C, H, W) or (M, H, W), bytes or numbers in [0, 1]. Rows are floats
    (M, F) or a pandas frame of numbers. Texts are word numbers (M, L) from 1, padded by 0.

    Raises:
        InputError: the inputs are not images, rows or texts, or the labels are not integers from 0.

    >>> labelled_arrays("notes", [[3, 1], [2, 0]], [0, 1]).kind, labelled_arrays("wine", [[0.5], [0.7]], [0, 1]).kind
    ('texts', 'rows')
    """
    white = 255 if getattr(x, "dtype", None) in (torch.uint8, np.uint8) else 1
    if hasattr(x, "columns"):
        try:
            x = np.asarray(x, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"the inputs of {name} must be columns of numbers ({error}); remove other columns"
            ) from error
    inputs, labels = tensors_of(name, (x, y))
    require(len(labels) > 0, f"{name} has no examples; give at least one example")
    require_finite(name, inputs)
    require(int(labels.min()) >= 0, f"the labels of {name} must be integers from 0 (got {labels.min()})")
    count, classes = len(labels), int(labels.max()) + 1
    if inputs.dim() == 2 and inputs.is_floating_point():
        return TableDataset(name, inputs, labels, count, classes)
    if inputs.dim() == 2:
        require(
            int(inputs.min()) >= 0,
            f"the words of {name} must be numbered from 1, with 0 as padding (got {inputs.min()})",
        )
        return TextDataset(name, inputs, int(inputs.max()), labels, count, classes)
    require(
        inputs.dim() in (3, 4),
        f"the inputs of {name} must be images (C, H, W), rows (F,) or texts (L,) (got shape {tuple(inputs.shape[1:])})",
    )
    low, high = float(inputs.min()), float(inputs.max())
    require(
        low >= 0 and high <= white, f"the images of {name} must be bytes or numbers in [0, 1] (got {low:g} to {high:g})"
    )
    images = inputs if inputs.dim() == 4 else inputs[:, None]
    return ImageDataset(name, images if white == 1 else images.to(torch.uint8), white, labels, count, classes)


def require_finite(name: str, x: Tensor, kind: str = "inputs") -> None:
    """Raise `InputError` if ``x`` (m, ...) has a number that is not finite."""
    if x.is_floating_point() and not bool(torch.isfinite(x.sum())):
        wrong = int((~torch.isfinite(x.flatten(1) if x.dim() > 1 else x[:, None])).any(dim=1).sum())
        require(
            wrong == 0, f"the {kind} of {name} must be finite (got NaN or infinity in {wrong} of {len(x)} examples)"
        )


def integers_of(value: object, form: str) -> Tensor:
    """Copy integers of any shape to int64.

    Args:
        form: the start of the error message, which names the allowed integers.

    Raises:
        InputError: ``value`` is not an array of integers.
    """
    wrong = f"{form} (got {describe(value)})"
    try:
        numbers = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(wrong) from error
    require(not (numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool), wrong)
    return numbers.to("cpu", torch.int64, copy=True)


def group_names(name: str, value: object, count: int) -> list[str]:
    """Return the ``count`` group names in ``value``.

    Raises:
        InputError: ``value`` has codes instead of names, a wrong number of names, or a name that is not allowed.
    """
    codes = isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "iufb")
    if codes or isinstance(value, str) or not isinstance(value, Iterable):
        raise InputError(f"{name} must be a list of names such as ['north', 'south', ...] (got {describe(value)})")
    names: list[Any] = [str(group) if isinstance(group, np.str_) else group for group in value]
    require(len(names) == count, f"{name} must have {count} names (got {len(names)})")
    require_group_names(dict.fromkeys(names))
    return names


def stack_inputs(name: str, values: Sequence[object]) -> Tensor:
    """Stack inputs of equal shape into one tensor; pictures become (C, H, W) in [0, 1], see `grey_or_rgb`."""
    require(not any(map(_is_several, values)), f"{name} must have one input tensor per example; {_PACKED}")
    arrays = [value.numpy(force=True) if isinstance(value, Tensor) else _array(name, value) for value in values]
    shapes = sorted({array.shape for array in arrays})
    require(
        len(shapes) <= 1,
        f"the inputs of {name} must have equal shapes (got {', '.join(map(str, shapes[:3]))}); {_PADDED}",
    )
    return torch.as_tensor(np.stack(arrays)) if arrays else torch.empty(0)


def grey_or_rgb(picture: Any, channels: Literal[1, 3] | None = None) -> Any:  # noqa: ANN401 - of Pillow, an extra
    """Convert a Pillow picture to mode L or RGB, without transparency.

    Args:
        channels: 1 for grey, 3 for RGB; by default 1 for the modes 1, L and LA, else 3.

    Raises:
        ValueError: the picture has more than 8 bits per channel, or a mode that Pillow does not convert.
    """
    mode = picture.mode
    if mode.startswith(("I", "F")):
        raise ValueError(f"more than 8 bits per channel, Pillow's mode {mode}; 8 bits are allowed")
    return picture.convert("L" if (channels or (1 if mode in ("1", "L", "LA") else 3)) == 1 else "RGB")


def _pair_of_loader(name: str, loader: DataLoader[Any]) -> tuple[Tensor, Tensor]:
    """Return inputs (m, ...) and labels (m,) of all batches, in the loader's order."""
    pairs = [_pair(name, batch) for batch in loader]
    require(bool(pairs), f"{name} is a data loader without batches; give at least one example")
    xs, ys = zip(*pairs, strict=True)
    return torch.cat(xs), torch.cat(ys)


def _pair(name: str, batch: object) -> tuple[Tensor, Tensor]:
    allowed = "batches must be pairs (x, y) of tensors, or dictionaries with the inputs and 'label' or 'labels'"
    if isinstance(batch, Mapping):
        labels = [key for key in batch if key in _LABELS]
        found = f"{name} has batches with the wrong keys (got {quote(map(str, batch))}); {allowed}"
        require(len(batch) == 2 and len(labels) == 1, found)
        batch = [*(values for key, values in batch.items() if key not in _LABELS), batch[labels[0]]]
    pair = isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch)
    require(pair, f"{name} has batches of the wrong form (got {describe(batch)}); {allowed}")
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
        raise InputError(
            f"{name} has a picture that cannot be converted ({error}); give an array of numbers"
        ) from error
    return np.atleast_3d(pixels).transpose(2, 0, 1).astype(np.float32) / 255


def _is_several(value: object) -> bool:
    """Return whether ``value`` holds several inputs per example, in a dictionary or a tuple of arrays."""
    arrays = isinstance(value, tuple) and any(isinstance(item, Tensor | np.ndarray) and item.ndim for item in value)
    return isinstance(value, dict) or arrays


def _inputs(name: str, value: object) -> Tensor:
    """Convert inputs (m, ...): floats, bytes and booleans to float32, integers (word numbers) to int64."""
    require(not _is_several(value), f"{name} must be one array (got {describe(value)}); {_PACKED}")
    nested = isinstance(value, Tensor) and value.is_nested
    require(not nested, f"{name} must have equal shapes (got a nested tensor); {_PADDED}")
    x = _tensor(name, value)
    require(x.dim() > 0, f"{name} must have one row per example (got one number)")
    require(not x.is_complex(), f"{name} must be real numbers (got {x.dtype})")
    floats = x.is_floating_point() or x.dtype in (torch.bool, torch.uint8)
    return x.to(torch.float32 if floats else torch.int64)


def _labels(name: str, value: object) -> Tensor:
    """Convert integers (m,) or (m, 1) of any type, or one-hot rows (m, C), to labels (m,) int64."""
    y = _tensor(name, value).detach()
    if y.dtype == torch.int64 and y.dim() == 1:
        return y
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dim() == 2 and y.numel() and bool(((y == 0) | (y == 1)).all() & (y.sum(dim=1) == 1).all()):
        y = y.to(torch.int64).argmax(dim=1)
    require(
        y.dim() == 1,
        f"{name} must have one number per example (got shape {tuple(y.shape)}); for several labels per example, use "
        "task='regression' with your own loss and metric",
    )
    require(
        not y.is_complex() and bool((y == y.to(torch.int64)).all()),
        f"{name} must be integers from 0 (got {y.dtype} such as {y.flatten()[:1].tolist()}); to predict numbers, use "
        "task='regression'",
    )
    return y.to(torch.int64)


def _targets(name: str, value: object) -> Tensor:
    """Convert numbers (m,) or (m, d) of any type to regression targets (m, d) float32."""
    y = _tensor(name, value)
    require(not y.is_complex(), f"{name} must be real numbers (got {y.dtype})")
    require(
        y.dim() in (1, 2) and (y.dim() == 1 or y.shape[1] > 0),
        f"{name} must have shape (m,) or (m, d) (got shape {tuple(y.shape)}); reshape targets of more dimensions in "
        "your own loss and metric",
    )
    return (y[:, None] if y.dim() == 1 else y).detach().to(torch.float32)


def _tensor(name: str, value: object) -> Tensor:
    """Convert a tensor, list, numpy array or pandas column to a tensor."""
    sparse = value.layout != torch.strided if isinstance(value, Tensor) else hasattr(value, "toarray")
    require(
        not sparse,
        f"{name} must be dense arrays (got {describe(value)}); call to_dense() in PyTorch or toarray() in SciPy",
    )
    if isinstance(value, Tensor):
        return value
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise InputError(
            f"{name} must hold numeric items of equal shape (got {describe(value)} with items of different lengths); "
            f"{_PADDED}"
        ) from error
    numbers = array.dtype.kind in "iufb"
    example = f" such as {array.flat[:1].tolist()[0]!r}" if array.size and not numbers else ""
    require(numbers, f"{name} must be numbers (got {describe(value)}{example}); replace names by integers from 0")
    return torch.as_tensor(array.copy() if not array.flags.writeable else array)
