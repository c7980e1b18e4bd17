"""A user's own tables as the parts of a federation: the work of `Federation.from_table`."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.data.names import EVERYBODY, groups_of_clients, numbered, similar_names
from shoal.data.user.arrays import Arrays, Columns, Examples, Table, Task, tensors_of
from shoal.data.user.from_tensors import FederationParts, parts_of_tensors
from shoal.data.user.origins import at
from shoal.data.user.packed_arrays import ClientArrays
from shoal.data.user.standardizer import Standardizer
from shoal.data.user.table_rows import TableRows, frame_of, read_rows

LOG = logging.getLogger("shoal")


def parts_of_table(
    table: Table,
    columns: Columns,
    *,
    test: Table,
    shadow: Table | None,
    threshold: Tensor | Sequence[float] | float,
    beta: Tensor | Sequence[float] | float,
    classes: int | None,
    task: Task,
) -> FederationParts:
    """See `Federation.from_table`."""
    known = read_rows("the table", frame_of("the table", table), columns, task)
    scale = Standardizer.fit(known.inputs, known.x, known.words, columns.impute) if known.inputs else None
    columns = replace(columns, inputs=known.inputs or columns.inputs)
    own, names = pd.factorize(np.array(known.clients, dtype=object))
    client = torch.from_numpy(own)
    named = [("clients", list(names))]
    class_names = numbered(known.labels)[1] if task == "classification" else ()
    named.append(("classes", list(class_names)))
    # With `classes`, whole numbers are classes as they are.
    as_they_are = classes is not None and all(each.lstrip("-").isdecimal() for each in class_names)
    number_of = {each: i for i, each in enumerate(class_names)}
    groups = None
    if known.groups is not None:
        of_example, group_names = numbered(known.groups)
        number = groups_of_clients("the table", (client, list(names)), (of_example, group_names))
        groups = [group_names[g] for g in number.tolist()]
        named.append(("groups", list(group_names)))
    for each in (*known.warnings, *(f"the table: {each}" for each in similar_names(named))):
        LOG.warning("%s", each)

    def pair(rows: TableRows) -> Arrays:
        y = rows.labels
        if class_names:
            unknown = [] if as_they_are else [each for each in y if each not in number_of]
            require(not unknown, f"{rows.name} has the label '{(unknown or [''])[0]}', which no client has")
            y = [int(each) if as_they_are else number_of[each] for each in y]
        return tensors_of(rows.name, (rows.x if scale is None else scale.transform(rows.x, rows.words), y), task)

    place = {each: i for i, each in enumerate(zip(names, groups or [EVERYBODY] * len(names), strict=True))}

    def others(name: str, given: Table) -> Examples:
        rows = read_rows(name, frame_of(name, given), columns, task, of_clients=False)
        x, y = pair(rows)
        of_group = [EVERYBODY] * len(y) if rows.groups is None else list(rows.groups)
        whose = [place.get(each, -1) for each in zip(rows.clients, of_group, strict=True)]
        return Examples(x, y, of_group, whose if max(whose, default=-1) >= 0 else None)

    x, y = pair(known)
    order = torch.argsort(client, stable=True)
    parts = parts_of_tensors(
        ClientArrays(x[order], y[order], torch.bincount(client)),
        test=others("the test table", test),
        shadow=None if shadow is None else others("the shadow table", shadow),
        groups=groups,
        holdout=None,
        threshold=threshold,
        beta=beta,
        classes=classes,
        task=task,
    )
    origins = {**parts.origins, "clients": partial(at, "table[{}]".format, order)}
    return replace(parts, names=tuple(map(str, names)), origins=origins)
