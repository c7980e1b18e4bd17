"""A user's own tables as the fields of a federation: the work of `Federation.from_table`."""

import logging
import re
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch

from shoal.core.errors import require
from shoal.data.names import EVERYBODY, groups_of_clients, numbered, similar_names
from shoal.data.user.arrays import Arrays, Columns, Examples, Table, Task, tensors_of
from shoal.data.user.from_tensors import Limits, fields_from_tensors
from shoal.data.user.origins import numbered_name
from shoal.data.user.packed_arrays import ClientArrays
from shoal.data.user.standardizer import Standardizer
from shoal.data.user.table_rows import TableRows, frame_of, read_rows

LOG = logging.getLogger("shoal")

_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""The spelling of an integer of 64 bits."""


def fields_from_table(
    table: Table,
    columns: Columns,
    *,
    test: Table,
    shadow: Table | None,
    limits: tuple[Limits, Limits],
    classes: int | None,
    task: Task,
) -> dict[str, Any]:
    """The fields of `Federation` by name; ``limits`` are the thresholds and the betas."""
    trained = read_rows("the table", frame_of("the table", table, getattr(columns, "client", "")), columns, task)
    scale, partitioned = None, hasattr(table, "load_partition")
    if trained.inputs:
        scale = Standardizer.fit(trained.inputs, trained.x, trained.words, columns.impute)
        columns = replace(columns, inputs=trained.inputs)
    numbers, distinct = pd.factorize(np.array(trained.clients, dtype=object))
    client, clients = torch.from_numpy(numbers), list(distinct)
    class_names = numbered(trained.labels)[1] if task == "classification" else ()
    # With `classes`, integers are classes as they are. A code such as 01 is none.
    as_they_are = classes is not None and all(map(_INTEGER.fullmatch, class_names))
    number = {name: int(name) if as_they_are else i for i, name in enumerate(class_names)}
    groups, group_names = None, ()
    if trained.groups is not None:
        example_group, group_names = numbered(trained.groups)
        group = groups_of_clients("the table", (client, clients), (example_group, group_names))
        groups = [group_names[g] for g in group.tolist()]
    named = [("clients", clients), ("classes", class_names), ("groups", group_names)]
    for sentence in (*trained.warnings, *(f"the table: {warning}" for warning in similar_names(named))):
        LOG.warning("%s", sentence)

    def pair(rows: TableRows) -> Arrays:
        y = rows.labels
        if class_names:
            unknown = [name for name in y if not (_INTEGER.fullmatch(name) if as_they_are else name in number)]
            require(not unknown, f"{rows.name} has the label '{(unknown or [''])[0]}', which no client has")
            y = [int(name) if as_they_are else number[name] for name in y]
        return tensors_of(rows.name, (rows.x if scale is None else scale.transform(rows.x, rows.words), y), task)

    position = {key: i for i, key in enumerate(zip(clients, groups or [EVERYBODY] * len(clients), strict=True))}

    def examples(name: str, table: Table) -> Examples:
        frame = frame_of(name, table)
        if partitioned and columns.client not in frame:
            frame = frame.assign(**{columns.client: None})
        rows = read_rows(name, frame, columns, task, of_clients=False)
        x, y = pair(rows)
        row_groups = [EVERYBODY] * len(y) if rows.groups is None else list(rows.groups)
        owners = [position.get(key, -1) for key in zip(rows.clients, row_groups, strict=True)]
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
    )
    origins = {**fields["origins"], "clients": partial(numbered_name, "table[{}]".format, order)}
    return fields | {"names": tuple(map(str, clients)), "origins": origins}
