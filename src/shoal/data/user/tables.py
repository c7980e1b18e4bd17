"""Conversion of a user's tables to examples and to the fields of a federation."""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.core.errors import InputError, describe, quote, require, require_instance, suggest
from shoal.core.formats import join_words
from shoal.core.randomness import Stream
from shoal.data.datasets import Standardizer
from shoal.data.names import EVERYBODY, groups_of_clients, numbered, numbered_name, similar_names
from shoal.data.user.arrays import LARGEST, Arrays, ArrayTable, Columns, Examples, Task, stack_inputs, tensors_of
from shoal.data.user.from_tensors import ClientArrays, Limits, fields_from_tensors

LOG = logging.getLogger("shoal")


@dataclass(frozen=True, eq=False)
class TableRows:
    """M rows of a table.

    Attributes:
        name: the table's name in messages.
        x: a frame with F columns of float64 or words, where empty cells are NaN; or a tensor (M, ...) of pictures or
            lists.
        clients: the client name of each row, M strings.
        labels: the class name of each row, M strings, or the label column of a regression.
        groups: the group name of each row, M strings, or None without a column of groups.
        warnings: messages for the user about the reading of the table.
    """

    name: str
    x: Tensor | pd.DataFrame
    clients: list[str]
    labels: Any
    groups: list[str] | None
    warnings: tuple[str, ...]


MOST_WORDS = 20
"""The largest number of different words in a column that is an input by default."""

_WHOLE = re.compile(r"\A\s*(0|-?[1-9][0-9]*)(\.0*)?\s*\Z")
"""An integer as text, possibly with spaces or a zero fraction, such as "3.0"."""

_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""An integer of at most 18 digits as text."""

_Kind = Literal["numbers", "words", "numbers and others", "other"]


def fields_from_table(
    table: ArrayTable,
    columns: Columns,
    *,
    test: ArrayTable | None,
    shadow: ArrayTable | None,
    limits: tuple[Limits, Limits],
    classes: int | None,
    task: Task,
    split: tuple[float, int] | None,
) -> dict[str, Any]:
    """Return the fields of `Federation` by name; see `Federation.from_table`.

    ``split`` is the fraction of each client's rows to hold out as the test set, and the seed of the random draws.
    """
    require((test is None) != (split is None), "give exactly one of 'test' and 'test_fraction'")
    frame = frame_of("the table", table, getattr(columns, "client", ""))
    rows = chosen_rows("the table", frame, columns)
    if split is not None:
        require_columns("the table", frame, [columns.client])
        rows, held_out = _test_rows(_spell(frame[columns.client]), rows, *split)
        test = frame.iloc[held_out.numpy()]
    trained = read_rows("the table", frame.iloc[rows.numpy()], columns, task)
    scale, partitioned = None, hasattr(table, "load_partition")
    if isinstance(trained.x, pd.DataFrame):
        scale = Standardizer.fit(trained.x, columns.impute)
        columns = replace(columns, inputs=scale.inputs)
    numbers, distinct = pd.factorize(np.array(trained.clients, dtype=object))
    client, clients = torch.from_numpy(numbers), list(distinct)
    class_names = numbered(trained.labels)[1] if task == "classification" else ()
    # With `classes`, integers are classes as they are. A code such as 01 is none.
    as_they_are = classes is not None and all(map(_INTEGER.fullmatch, class_names))
    number = {name: int(name) if as_they_are else i for i, name in enumerate(class_names)}
    groups, several = None, list[str]()
    example_group, group_names = numbered(trained.groups or ())
    if trained.groups is not None:
        group, several = groups_of_clients("the table", (client, clients), (example_group, group_names))
        groups = [group_names[g] for g in group.tolist()]
    named = [("clients", clients), ("classes", class_names), ("groups", group_names)]
    for sentence in (*trained.warnings, *several, *(f"the table: {warning}" for warning in similar_names(named))):
        LOG.warning("%s", sentence)

    def pair(rows: TableRows) -> Arrays:
        y = rows.labels
        if class_names:
            unknown = [name for name in y if not (_INTEGER.fullmatch(name) if as_they_are else name in number)]
            require(
                not unknown,
                f"{rows.name} has the label '{(unknown or [''])[0]}', which no client's training rows have; remove the "
                "rows with this label",
            )
            y = [int(name) if as_they_are else number[name] for name in y]
        x = scale.transform(rows.x) if scale is not None and isinstance(rows.x, pd.DataFrame) else rows.x
        return tensors_of(rows.name, (x, y), task)

    of_clients = groups if groups and not several else [EVERYBODY] * len(clients)
    position = {key: i for i, key in enumerate(zip(clients, of_clients, strict=True))}

    def examples(name: str, table: ArrayTable) -> Examples:
        frame = frame_of(name, table)
        frame = frame.iloc[chosen_rows(name, frame, columns).numpy()]
        if partitioned and columns.client not in frame:
            frame = frame.assign(**{columns.client: None})
        rows = read_rows(name, frame, columns, task, of_clients=False)
        x, y = pair(rows)
        row_groups = [EVERYBODY] * len(y) if rows.groups is None else list(rows.groups)
        keys = zip(rows.clients, [EVERYBODY] * len(y) if several else row_groups, strict=True)
        owners = [position.get(key, -1) for key in keys]
        return Examples(x, y, row_groups, owners if max(owners, default=-1) >= 0 else None)

    x, y = pair(trained)
    order = torch.argsort(client, stable=True)
    fields = fields_from_tensors(
        ClientArrays(x[order], y[order], torch.bincount(client)),
        test=examples("the test table", test),
        shadow=None if shadow is None else examples("the shadow table", shadow),
        groups=groups,
        holdout=None,
        limits=limits,
        classes=classes,
        task=task,
        row_groups=[group_names[g] for g in example_group[order].tolist()] if several else (),
        class_names=() if as_they_are else class_names,
    )
    origins = {**fields["origins"], "clients": partial(numbered_name, "table[{}]".format, rows[order])}
    return fields | {"names": tuple(map(str, clients)), "origins": origins}


def frame_of(name: str, table: ArrayTable, client: str = "") -> pd.DataFrame:
    """Convert a pandas frame, a Hugging Face `datasets.Dataset` or a partitioner of flwr-datasets to a frame.

    Args:
        client: the name of the new column for partition numbers.

    Raises:
        InputError: the table has a different type, or the partitions already have a column ``client``.
    """
    if hasattr(table, "load_partition"):
        return _of_partitions(name, table, client)
    if isinstance(table, pd.DataFrame):
        return table
    columns = getattr(table, "column_names", None)
    if not isinstance(columns, list):
        kinds = "a pandas DataFrame, a datasets.Dataset or a partitioner of flwr-datasets"
        raise InputError(f"{name} must be {kinds} (got {describe(table)})")
    return pd.DataFrame({column: list(table[column]) for column in columns})


def _of_partitions(name: str, table: Any, client: str) -> pd.DataFrame:  # noqa: ANN401 - of a package that may be absent
    """Return the rows of all partitions, one client per partition."""
    by_split = getattr(table, "partitioners", None)
    if by_split is not None:
        require(
            len(by_split) == 1,
            f"{name} must have partitions of one split (got {len(by_split)} splits); give one partitioner",
        )
        (split,) = by_split
        # Until then the partitioner has no data.
        table.load_partition(0, split)
        table = by_split[split]
    frames = [frame_of(name, table.load_partition(number)) for number in range(table.num_partitions)]
    taken = any(client in frame for frame in frames)
    require(
        not taken,
        f"{name} already has a column '{client}'; set 'client' to the name of a new column for the partitions",
    )
    return pd.concat([frame.assign(**{client: str(i)}) for i, frame in enumerate(frames)], ignore_index=True)


def chosen_rows(name: str, table: pd.DataFrame, columns: Columns) -> Tensor:
    """Return the positions (M,) int64 of the rows that `Columns.rows` selects.

    Raises:
        InputError: the column is missing, or no row has one of the values.
    """
    if getattr(columns, "rows", None) is None:
        return torch.arange(len(table))
    assert columns.rows is not None
    column, *values = columns.rows
    require_columns(name, table, [column])
    cells = pd.Series(_spell(table[column]), dtype=object)
    for value in values:
        hint = suggest(value, cells.unique())
        require(
            bool((cells == value).any()), f"{name} has no row with the value '{value}' in column '{column}'; {hint}"
        )
    return torch.from_numpy(np.flatnonzero(cells.isin(values)))


def held_out_count(examples: int, fraction: float) -> int:
    """Return the rounded number of held-out examples for a fraction; at least 1 if the fraction is above 0."""
    return max(1, round(fraction * examples)) if fraction > 0 else 0


def shuffle_parts(own: Tensor, name: str, counts: Sequence[int], stream: Stream) -> tuple[Tensor, ...]:
    """Split a client's examples ``own`` (m,) at random into parts of sizes ``counts``, and the rest."""
    shuffled = own[torch.from_numpy(stream("split", name).numpy().permutation(len(own)))]
    return shuffled.split([*counts, len(own) - sum(counts)])


def _test_rows(clients: Sequence[str], rows: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Split ``rows`` into training and test rows, as the source ``table`` of a configuration does."""
    require(0 < fraction < 1, f"'test_fraction' must be above 0 and below 1 (got {fraction!r})")
    numbers, names = pd.factorize(np.array(clients, dtype=object)[rows.numpy()])
    parts = []
    for i, name in enumerate(names):
        own = rows[torch.from_numpy(numbers == i)]
        count = min(len(own) - 1, held_out_count(len(own), fraction))
        parts.append(shuffle_parts(own, name, [count], Stream(seed, ("data",))))
    test, training = (torch.cat(part).sort().values for part in zip(*parts, strict=True))
    return training, test


def read_rows(
    name: str, table: pd.DataFrame, columns: Columns, task: Task = "classification", *, of_clients: bool = True
) -> TableRows:
    """Check and read the rows of a table.

    Args:
        of_clients: whether each row must name a client; the server's rows need not.

    Raises:
        InputError: a column is missing or unusable, or a cell is empty.
    """
    require_instance("columns", columns, Columns, "such as Columns(client='ward', label='sick')")
    names = [column for column in (columns.client, columns.group) if column is not None]
    table = _with_text_names(name, table)
    require_columns(name, table, [*names, columns.label, *(columns.inputs or ())])
    require(len(table) > 0, f"{name} has no rows; give at least one client with several rows")
    for column in [*names, columns.label][0 if of_clients else 1 :]:
        require_named(name, table[column])
    inputs, warnings = _inputs(name, table, columns)
    if len(inputs) == 1 and _kind(table[inputs[0]]) == "other":
        x = stack_inputs(name, table[inputs[0]].tolist())
    else:
        x = pd.DataFrame({column: _cells(table[column]) for column in inputs})
        _require_values(name, x, empty=columns.impute is not None)
        if columns.impute is not None and (empty := _by_column(x.isna().sum())):
            filled = join_words(empty, most=5)
            warnings.append(f'{name}: impute = "{columns.impute}" fills empty cells in {filled}')
    return TableRows(
        name=name,
        x=x,
        clients=_spell(table[columns.client]),
        labels=table[columns.label].to_numpy() if task == "regression" else _labels(name, table[columns.label]),
        groups=None if columns.group is None else _spell(table[columns.group]),
        warnings=(*table.attrs.get("warnings", ()), *warnings),
    )


def _with_text_names(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """Convert column names to text; raise `InputError` if a name is missing or occurs twice."""
    for place, title in enumerate(table.columns, start=1):
        missing = pd.api.types.is_scalar(title) and pd.isna(title)
        require(not missing, f"{name} must have a name for column {place} (got {title})")
    titles = [str(title) for title in table.columns]
    require_distinct(name, titles)
    return table.set_axis(titles, axis=1)


def require_distinct(name: str, titles: Iterable[str]) -> None:
    """Raise `InputError` if two columns have equal names."""
    twice = next((title for title, count in Counter(titles).items() if count > 1), None)
    require(twice is None, f"{name} must have distinct column names (got '{twice}' twice)")


def require_columns(name: str, table: pd.DataFrame, columns: Iterable[str]) -> None:
    """Raise `InputError` unless the table has all ``columns``."""
    for column in columns:
        if column not in table.columns:
            raise InputError(f"{name} has no column '{column}'; {suggest(column, map(str, table.columns))}")


def require_named(name: str, column: pd.Series) -> None:
    """Raise `InputError` if a column has an empty cell."""
    empty = np.flatnonzero(column.isna())
    require(
        len(empty) == 0,
        f"{name}, column '{column.name}': {len(empty):,} of {len(column):,} cells are empty (first "
        f"in row {empty[0] + 1 if len(empty) else 0}, without the header); fill these cells or remove the rows",
    )


def _inputs(name: str, table: pd.DataFrame, columns: Columns) -> tuple[list[str], list[str]]:
    """Return the input columns, and warnings about inputs that may be ids and about columns left out."""
    used = (columns.client, columns.label, columns.group)
    asked = [column for column in table.columns if column not in used] if columns.inputs is None else columns.inputs
    kinds: dict[str, _Kind] = {column: _kind(table[column]) for column in asked}
    words = {column for column, kind in kinds.items() if kind == "words" and columns.one_hot}
    if columns.inputs is None:
        words = {column for column in words if 1 < table[column].nunique() <= MOST_WORDS}
    inputs = [column for column, kind in kinds.items() if kind == "numbers" or column in words]
    usable = set(inputs)
    if not inputs and list(kinds.values()) == ["other"]:
        return list(asked), []
    if columns.inputs is not None:
        require(bool(asked), "'inputs' must name at least one column (got an empty list)")
        for column, kind in kinds.items():
            fault, remedy = "", "remove the column from 'inputs', or set 'one_hot' for words"
            if kind == "numbers and others":
                fault, remedy = (
                    f" ({_not_numbers(table[column])})",
                    "correct these cells, or write every cell as a word",
                )
            require(column in usable, f"{name}, column '{column}': cells must be numbers{fault}; {remedy}")
        return inputs, []
    require(
        bool(inputs), f"{name} has no input column of numbers besides {quote(filter(None, used))}; add at least one"
    )
    return inputs, [*_left_out(name, table, columns, kinds), *_code_warnings(name, table, inputs)]


def _kind(column: pd.Series) -> _Kind:
    if pd.api.types.is_numeric_dtype(column):
        return "other" if pd.api.types.is_complex_dtype(column) else "numbers"
    cells = column.dropna()
    if cells.empty or not cells.map(lambda cell: isinstance(cell, str | int | float)).all():
        return "other"
    share = pd.to_numeric(cells, errors="coerce").notna().mean()
    return "numbers" if share == 1 else "numbers and others" if share > 0.5 else "words"


def _not_numbers(column: pd.Series) -> str:
    """Describe the number of cells that are not numbers, and the first such cell."""
    wrong = np.flatnonzero(pd.to_numeric(column, errors="coerce").isna() & column.notna())
    first, are = f"'{column.iloc[wrong[0]]}' in row {wrong[0] + 1}", "is not a number"
    if len(wrong) > 1:
        are = "are not numbers"
    return f"{len(wrong):,} of {len(column):,} cells {are}, {first}"


def _left_out(name: str, table: pd.DataFrame, columns: Columns, kinds: dict[str, _Kind]) -> Iterator[str]:
    for column, kind in kinds.items():
        if kind == "numbers and others":
            fault = _not_numbers(table[column])
            remedy = "correct these cells, or write every cell as a word"
            yield f"{name}: the input '{column}' is left out: {fault}; {remedy}"
    words = [column for column, kind in kinds.items() if kind == "words"]
    others = [column for column, kind in kinds.items() if kind == "other" or (kind == "words" and not columns.one_hot)]
    if others:
        how = "; 'one_hot' makes columns of words inputs" if words and not columns.one_hot else ""
        yield f"{name}: columns left out as inputs, since they hold no numbers: {quote(others)}{how}"
    counts = {column: table[column].nunique() for column in words if columns.one_hot}
    unusual = [f"'{column}' ({count:,})" for column, count in counts.items() if not 1 < count <= MOST_WORDS]
    if unusual:
        yield (
            f"{name}: columns left out as inputs, since they do not hold 2 to {MOST_WORDS} different words: "
            f"{', '.join(unusual)}; name a column in 'inputs' to encode it"
        )


def _code_warnings(name: str, table: pd.DataFrame, inputs: Sequence[str]) -> Iterator[str]:
    """Yield a warning about inputs that look like ids or postcodes."""
    codes = []
    for column in [column for column in inputs if pd.api.types.is_integer_dtype(table[column])]:
        if len(table) >= 10 and table[column].is_unique:
            codes.append(f"'{column}' (a different integer in each row)")
        elif table[column].min() >= 1000:
            codes.append(f"'{column}' (integers of 4 digits or more)")
    if codes:
        yield f"{name}: inputs that may be ids or codes: {', '.join(codes)}; 'inputs' can leave them out"


def _cells(column: pd.Series) -> np.ndarray:
    """Convert a column to numbers (M,) float64, or to words; empty cells are NaN."""
    if _kind(column) == "numbers":
        return pd.to_numeric(column).to_numpy(dtype=np.float64, na_value=np.nan)
    return column.map(str, na_action="ignore").to_numpy(dtype=object, na_value=np.nan)


def _by_column(counts: pd.Series) -> list[str]:
    """The columns with a count above 0, each with its count."""
    return [f"'{column}' ({count:,})" for column, count in counts.items() if count]


def _require_values(name: str, inputs: pd.DataFrame, *, empty: bool) -> None:
    """Raise `InputError` for infinite or too large cells, and for empty cells unless ``empty`` allows them."""
    infinite = inputs.select_dtypes("number").abs().ge(LARGEST).reindex(columns=inputs.columns, fill_value=False)
    wrong = infinite if empty or infinite.any(axis=None) else inputs.isna()
    counts = wrong.sum()
    if counts.any():
        where = _by_column(counts)
        shown = ", ".join(where[:5]) + (f" and {len(where) - 5} more columns" if len(where) > 5 else "")
        total, row = int(counts.sum()), np.flatnonzero(wrong.any(axis=1))[0] + 1
        kind, remedy = ("too large", "correct") if wrong is infinite else ("empty or NaN", "set 'impute', or fill")
        if np.isinf(inputs.select_dtypes("number")).any(axis=None):
            kind = "infinite"
        raise InputError(
            f"{name} has {total:,} {kind} cell{'s' * (total > 1)} in {shown} (first in row {row}, without the "
            f"header); {remedy} the cells or remove the rows"
        )


def _spell(column: pd.Series) -> list[str]:
    """Convert names to text; integers have no decimal point."""
    if pd.api.types.is_float_dtype(column) and bool((column % 1 == 0).all()):
        return [str(int(cell)) for cell in column.tolist()]
    return [str(cell) for cell in column.tolist()]


def _labels(name: str, column: pd.Series) -> list[str]:
    """Convert labels to text; codes such as 01 or 1E2 stay unchanged, 1.0 becomes 1, and numbers must be integers."""
    labels = _spell(column)
    numbers = pd.to_numeric(pd.Series(labels), errors="coerce").to_numpy(np.float64, na_value=np.nan)
    if np.isfinite(numbers).all():
        # A text without a point, such as 2E-1, is a code.
        words = not pd.api.types.is_numeric_dtype(column)
        is_code = [words and "." not in label for label in labels]
        fractions = [number for number, code in zip(numbers.tolist(), is_code, strict=True) if number % 1 and not code]
        require(
            not fractions,
            f"{name}, column '{column.name}': labels must be names or integers (got {fractions[:1]}); to predict "
            "numbers, set task = 'regression'",
        )
    return [_WHOLE.sub(r"\1", label) for label in labels]
