"""A user's own tensors and tables as the parts of a federation, checked: the work of `Federation.from_tensors`."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import get_args

import torch
from torch import Tensor
from torch.utils.data import Dataset

from shoal.core.errors import InputError, described, nearest, quoted, require, whole
from shoal.core.representation import one_line
from shoal.core.settings import MAX_CLASSES
from shoal.data.names import EVERYBODY
from shoal.data.preferences import Preferences
from shoal.data.shards import GroupedExamples, Shards
from shoal.data.user.arrays import (
    Arrays,
    Examples,
    Task,
    group_names,
    require_finite,
    tensors_of,
)
from shoal.data.user.origins import Origins, own_example
from shoal.data.user.packed_arrays import ClientArrays


@dataclass(frozen=True, eq=False)
class FederationParts:
    """What a federation of N clients is made of; the fields are those of `Federation`."""

    clients: Shards
    group: Tensor
    groups: tuple[str, ...]
    preferences: Preferences
    test: GroupedExamples
    shadow: GroupedExamples
    holdout: Shards
    classes: int | None
    names: tuple[str, ...] | None = None
    origins: Origins = field(default_factory=dict)
    __repr__ = one_line


def parts_of_tensors(
    clients: Sequence[Arrays | Dataset] | ClientArrays,
    *,
    test: Arrays | Examples | Dataset,
    shadow: Arrays | Examples | Dataset | None,
    groups: Sequence[str] | None,
    holdout: Sequence[Arrays | Dataset] | ClientArrays | None,
    threshold: Tensor | Sequence[float] | float,
    beta: Tensor | Sequence[float] | float,
    classes: int | None,
    task: Task,
) -> FederationParts:
    """See `Federation.from_tensors`."""
    require(task in get_args(Task), f"'task' must be 'classification' or 'regression'; got {task!r}")
    regression = task == "regression"
    require(classes is None or not regression, f"a regression has no classes; got classes={classes!r}")
    shards = _own(clients, task)
    count, like = len(shards), (shards.x[:1], shards.y[:1])
    require(like[0].numel() > 0, f"'clients' have inputs of shape {tuple(like[0].shape[1:])}, without a number in it")
    if not regression:
        classes = _classes(shards) if classes is None else whole("classes", classes, "such as 10", 1)
        require(classes <= MAX_CLASSES, f"'classes' must be at most {MAX_CLASSES:,}; got {classes!r}")
    kept = _held(holdout, task, shards)
    group_of = [EVERYBODY] * count if groups is None else group_names("'groups'", groups, count)
    names = tuple(dict.fromkeys(group_of))
    require(
        isinstance(test, Examples) or len(names) == 1,
        f"with {len(names)} groups, 'test' must be Examples(x, y, groups), which name the group of each example",
    )
    tested = _grouped("the test set", test, names, like, task)
    if isinstance(test, Examples) and test.clients is not None:
        tested = replace(tested, client=_clients_of(test.clients, tested, [names.index(each) for each in group_of]))
    require(len(tested) > 0, "the test set has no examples; accuracy and non-members come from it")
    without = [name for g, name in enumerate(names) if not bool((tested.group == g).any())]
    require(not without, f"the test set has no examples of the group {quoted(without)}; each group needs some")
    none = GroupedExamples(like[0][:0], like[1][:0], torch.empty(0, dtype=torch.int64))
    number = {name: g for g, name in enumerate(names)}
    parts = FederationParts(
        clients=shards,
        group=torch.tensor([number[name] for name in group_of]),
        groups=names,
        preferences=Preferences(_per_client(threshold, count, "threshold", 0.5), _per_client(beta, count, "beta", 0.0)),
        test=tested,
        shadow=none if shadow is None else _grouped("the shadow set", shadow, names, like, task),
        holdout=kept,
        classes=classes,
        origins={
            "clients": partial(own_example, "clients", shards.offsets),
            "holdout": partial(own_example, "holdout", kept.offsets),
            "test": "test[{}]".format,
        },
    )
    _check(parts)
    return parts


def _classes(clients: Shards) -> int:
    """C, one more than the largest label."""
    largest = int(clients.y.max())
    require(
        largest < MAX_CLASSES,
        f"'clients' have the label {largest}, but labels are the numbers of at most {MAX_CLASSES:,} classes; number "
        "them from 0, or give task='regression'",
    )
    return largest + 1


def _own(clients: Sequence[Arrays | Dataset] | ClientArrays, task: Task) -> Shards:
    """The training examples of at least one client, of each at least one."""
    if isinstance(clients, ClientArrays):
        shards = clients.shards("'clients'", task)
        require(len(shards) > 0, "a federation needs at least one client")
        without = torch.nonzero(shards.sizes == 0).flatten()
        require(len(without) == 0, f"client {without[:1].sum()} has no examples")
        return shards
    sequence = isinstance(clients, Sequence) and not isinstance(clients, str)
    require(sequence, f"'clients' must be a list of pairs (x, y), one per client; got {described(clients)}")
    require(len(clients) > 0, "a federation needs at least one client")
    own = [tensors_of(f"client {i}", each, task) for i, each in enumerate(clients)]
    for i, (x, y) in enumerate(own):
        require(len(y) > 0, f"client {i} has no examples")
        _require_shape(f"client {i}", x, own[0][0])
        _require_shape(f"client {i}", y, own[0][1], "labels")
    return Shards.from_pairs(own)


def _held(holdout: Sequence[Arrays | Dataset] | ClientArrays | None, task: Task, like: Shards) -> Shards:
    """The examples that the clients, whose training examples are ``like``, keep out of training."""
    x, y, count = like.x[:0], like.y[:0], len(like)
    if holdout is None:
        return Shards.from_contiguous(x, y, torch.zeros(count, dtype=torch.int64))
    if isinstance(holdout, ClientArrays):
        shards = holdout.shards("'holdout'", task)
        _require_shape("the holdout", shards.x, x)
        _require_shape("the holdout", shards.y, y, "labels")
        require(len(shards) == count, f"'holdout' must be of {count} clients, as 'clients'; got {len(shards)}")
        return shards
    held = [tensors_of(f"the holdout of client {i}", each, task) for i, each in enumerate(holdout)]
    require(len(held) == count, f"'holdout' must have one (x, y) for each of {count} clients; got {len(held)}")
    for i, each in enumerate(held):
        _require_shape(f"the holdout of client {i}", each[0], x)
        _require_shape(f"the holdout of client {i}", each[1], y, "labels")
    return Shards.from_pairs(held)


def _require_shape(name: str, given: Tensor, like: Tensor, kind: str = "examples") -> None:
    shape, expected = tuple(given.shape[1:]), tuple(like.shape[1:])
    same = shape == expected or len(given) == 0
    require(same, f"{name} has {kind} of shape {shape}; client 0's have shape {expected}")


def _grouped(
    name: str, given: Arrays | Examples | Dataset, names: Sequence[str], like: tuple[Tensor, Tensor], task: Task
) -> GroupedExamples:
    """A test or shadow set with the groups by index; without names, all of the first group."""
    x, y = tensors_of(name, (given.x, given.y) if isinstance(given, Examples) else given, task)
    _require_shape(name, x, like[0])
    _require_shape(name, y, like[1], "labels")
    if not isinstance(given, Examples):
        return GroupedExamples(x, y, torch.zeros(len(y), dtype=torch.int64))
    of_each = group_names(f"the groups of {name}", given.groups, len(y))
    for each in dict.fromkeys(of_each):
        require(
            each in names, f"{name} has examples of the group '{each}', which no client is of; {nearest(each, names)}"
        )
    index = {each: g for g, each in enumerate(names)}
    return GroupedExamples(x, y, torch.tensor([index[each] for each in of_each], dtype=torch.int64))


def _clients_of(given: object, tested: GroupedExamples, group: Sequence[int]) -> Tensor:
    """`Examples.clients` of the test set, for clients of these groups (N,)."""
    form = f"the 'clients' of the test set must be {len(tested)} whole numbers from -1 to {len(group) - 1}"
    try:
        client = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{form}; got {described(given)}") from error
    whole = client.shape == (len(tested),) and not client.is_floating_point() and client.dtype != torch.bool
    require(whole, f"{form}; got {described(given)}")
    client = client.to(torch.int64)
    strangers = client[(client < -1) | (client >= len(group))]
    require(len(strangers) == 0, f"{form}; got {strangers[:1].sum()}")
    wrong = torch.nonzero((client >= 0) & (torch.tensor(group)[client] != tested.group)).flatten()
    require(
        len(wrong) == 0,
        f"the test set has an example of client {client[wrong[:1]].sum()} in another group than the client's",
    )
    return client


def _check(parts: FederationParts) -> None:
    """Raise unless all inputs are finite, and all labels in ``range(classes)`` or, in a regression, finite."""
    sets = [("client", parts.clients), ("the holdout of client", parts.holdout)]
    for name, shards in sets:
        outside = _outside(shards.y, parts.classes)
        finite = not shards.x.is_floating_point() or bool(torch.isfinite(shards.x.sum()))
        if finite and not bool(outside.any()):
            continue
        for i in range(len(shards)):
            own = shards.owned(i)
            require_finite(f"{name} {i}", shards.x[own])
            _require_labels(f"{name} {i}", shards.y[own], parts.classes)
    for name, examples in (("the test set", parts.test), ("the shadow set", parts.shadow)):
        require_finite(name, examples.x)
        _require_labels(name, examples.y, parts.classes)


def _outside(y: Tensor, classes: int | None) -> Tensor:
    """Whether labels (m,) or (m, d) are none, elementwise."""
    return ~torch.isfinite(y) if classes is None else (y < 0) | (y >= classes)


def _require_labels(name: str, y: Tensor, classes: int | None) -> None:
    if classes is None:
        require_finite(name, y, "labels")
        return
    wrong = y[_outside(y, classes)]
    require(
        len(wrong) == 0,
        f"{name} has the label {wrong[:1].sum()}; labels must be in 0..{classes - 1} (classes)",
    )


def _per_client(value: Tensor | Sequence[float] | float, count: int, name: str, low: float) -> Tensor:
    """One number, or one per client, as (count,) float64 in [low, 1]."""
    try:
        given = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"'{name}' must be one number or one for each of {count} clients; got {value!r}") from error
    require(
        given.dim() == 0 or given.shape == (count,),
        f"'{name}' must be one number or one for each of {count} clients; got shape {tuple(given.shape)}",
    )
    values = given.expand(count).clone()
    within = bool(((values >= low) & (values <= 1)).all())
    require(within, f"'{name}' must be in [{low}, 1]; got {values.min():g} to {values.max():g}")
    return values
