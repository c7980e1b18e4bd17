"""Examples that already belong to clients, and their split within each client."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated

import numpy as np
import pandas as pd
import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import quote, require
from shoal.core.randomness import Stream
from shoal.core.settings import OpenFraction, Positive, settings
from shoal.data.datasets import Impute, LabelledDataset, Standardizer
from shoal.data.federation import Federation
from shoal.data.names import (
    EVERYBODY,
    NameOf,
    group_counts,
    groups_of_clients,
    numbered,
    numbered_name,
    require_group_names,
    similar_names,
)
from shoal.data.partition import ClientIndices, PartitionIndices
from shoal.data.preferences import Preferences
from shoal.data.shards import GroupedExamples, Shards, gather, to_channels_first
from shoal.data.user.tables import held_out_count, shuffle_parts

_Part = Annotated[float, Field(ge=0, lt=1, strict=True)]


@dataclass(frozen=True, eq=False)
class ClientDataset:
    """Labelled examples of N named clients.

    Args:
        name: the name of the file or folder in messages.
        examples: pictures (M, C, H, W) uint8, or a frame (M, F) with columns of words or unstandardised float64, where
            empty cells are NaN.
        labels: the class numbers (M,) int64, or regression targets (M, 1) float64.
        client: the client of each example, (M,) int64.
        group: the group of each client, (N,) int64; with ``row_group`` the client's largest group.
        class_names, client_names, group_names: the names in the order of the numbers; a regression has no class names.
        impute: the method that replaces empty cells, or None if no cell is empty.
        warnings: messages for the user before training.
        origin: a function from an example's number to its name in the file or folder.
        row_group: the group of each example, (M,) int64, or None if every client has only one group.
    """

    name: str
    examples: Tensor | pd.DataFrame
    labels: Tensor
    client: Tensor
    group: Tensor
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    group_names: tuple[str, ...]
    impute: Impute | None = None
    # The last three change no model, so no fingerprint.
    warnings: tuple[str, ...] = field(default=(), compare=False)
    origin: NameOf = field(default=str, compare=False)
    row_group: Tensor | None = field(default=None, compare=False)

    @property
    def kind(self) -> str:
        """A plural noun for the examples, such as images or rows."""
        return "images" if isinstance(self.examples, Tensor) else "rows"

    @property
    def x(self) -> Tensor:
        """The pictures, or the rows (M, F) as float64, with words as numbers and NaN for empty cells."""
        if isinstance(self.examples, Tensor):
            return self.examples
        words = self.examples.select_dtypes(exclude="number").columns
        places = {name: pd.Categorical(self.examples[name]).codes for name in words}
        return torch.tensor(self.examples.assign(**places).where(self.examples.notna()).to_numpy(np.float64))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the F columns; empty for pictures."""
        return () if isinstance(self.examples, Tensor) else tuple(map(str, self.examples))

    @property
    def classes(self) -> int | None:
        """The number of classes, or None in a regression."""
        return len(self.class_names) or None

    @property
    def shares(self) -> dict[str, float]:
        """The fraction of a client's examples in each group, averaged over clients."""
        if self.row_group is None:
            return {name: count / len(self.group) for name, count in _counts(self.group_names, self.group)}
        counts = group_counts(self.client, self.row_group, (len(self.group), len(self.group_names)))
        shares = (counts / counts.sum(dim=1, keepdim=True)).mean(dim=0)
        return dict(zip(self.group_names, shares.tolist(), strict=True))

    @property
    def example_group(self) -> Tensor:
        """The group of each example, (M,) int64."""
        return self.group[self.client] if self.row_group is None else self.row_group

    @staticmethod
    def from_names(
        name: str,
        x: Tensor | pd.DataFrame,
        *,
        clients: Sequence[str],
        labels: Sequence[str] | Tensor,
        groups: Sequence[str] | None = None,
        impute: Impute | None = None,
        warnings: Sequence[str] = (),
        origin: NameOf = str,
    ) -> "ClientDataset":
        """Number the clients, classes and groups of M examples, each in sorted order.

        ``labels`` are class names, or regression targets (M, 1). Without ``groups`` all examples are in the group
        ``all``.

        Raises:
            InputError: there is no example, there is only one class, or a group's name is not allowed.
        """
        require(len(labels) > 0, f"{name} has no examples; give at least one client with several examples")
        client, client_names = numbered(clients)
        y, class_names = (labels, ()) if isinstance(labels, Tensor) else numbered(labels)
        example_group, group_names = numbered([EVERYBODY] * len(labels) if groups is None else groups)
        require(len(class_names) != 1, f"{name} must have at least 2 classes (got only {quote(class_names)})")
        require_group_names(group_names)
        named = (("clients", client_names), ("classes", class_names), ("groups", group_names))
        group, several = groups_of_clients(name, (client, client_names), (example_group, group_names))
        return ClientDataset(
            name=name,
            examples=x,
            labels=y,
            client=client,
            group=group,
            class_names=class_names,
            client_names=client_names,
            group_names=group_names,
            impute=impute,
            warnings=(*warnings, *several, *(f"{name}: {sentence}" for sentence in similar_names(named))),
            origin=origin,
            row_group=example_group if several else None,
        )

    def with_at_least(self, examples: int) -> "ClientDataset":
        """Leave out the clients with fewer than ``examples`` examples, with a warning.

        Raises:
            InputError: no client remains, or `from_names` fails.
        """
        counts = torch.bincount(self.client, minlength=len(self.client_names))
        few = torch.nonzero(counts < examples).flatten().tolist()
        if not few:
            return self
        kept = torch.nonzero(counts[self.client] >= examples).flatten()
        require(
            len(kept) > 0,
            f"{self.name}: 'min_examples' must be at most {counts.max()}, the largest client's size (got {examples})",
        )
        left_out = ", ".join(f"'{self.client_names[i]}' ({counts[i]:,})" for i in few[:10])
        more = f" and {len(few) - 10} more" if len(few) > 10 else ""
        clients = f"{len(few)} client{'s' * (len(few) > 1)} with fewer than {examples} examples"
        others = ClientDataset.from_names(
            self.name,
            self.examples[kept] if isinstance(self.examples, Tensor) else self.examples.iloc[kept.numpy()],
            clients=[self.client_names[i] for i in self.client[kept].tolist()],
            labels=[self.class_names[i] for i in self.labels[kept].tolist()] if self.classes else self.labels[kept],
            groups=[self.group_names[i] for i in self.example_group[kept].tolist()],
            impute=self.impute,
            origin=partial(numbered_name, self.origin, kept),
        )
        return replace(others, warnings=(*self.warnings, f"{self.name}: left out {clients}: {left_out}{more}"))

    def standardizer(self, indices: PartitionIndices) -> Standardizer | None:
        """Fit the standardizer to all clients' training rows; return None for pictures."""
        if isinstance(self.examples, Tensor):
            return None
        return Standardizer.fit(self.examples.iloc[indices.clients.indices.numpy()], self.impute)

    def description(self) -> Iterator[str]:
        """Describe the numbers of clients, groups and classes, one line each."""
        classes = [("classes, by number (examples)", self.class_names, self.labels)] if self.classes else []
        for title, names, numbers in (
            ("clients, by number (examples)", self.client_names, self.client),
            ("groups (clients)", self.group_names, self.group)
            if self.row_group is None
            else (f"groups ({self.kind})", self.group_names, self.row_group),
            *classes,
        ):
            counted, by_number = [*enumerate(_counts(names, numbers))], "by number" in title
            listed = [f"{f'{i} ' * by_number}'{name}' ({count:,})" for i, (name, count) in counted[:MOST_LISTED]]
            if len(counted) > MOST_LISTED:
                sizes = [count for _, (_, count) in counted]
                listed.append(f"and {len(counted) - MOST_LISTED:,} more; {min(sizes):,} to {max(sizes):,} each")
            yield f"{title}: {', '.join(listed)}"
        if not classes:
            low, high = float(self.labels.min()), float(self.labels.max())
            yield f"targets of a regression, standardised: from {low:g} to {high:g}"
        if isinstance(self.examples, Tensor):
            _, channels, height, width = self.examples.shape
            yield f"inputs: pictures of {height}x{width}, {'grey' if channels == 1 else 'RGB'}"
        else:
            words = self.examples.select_dtypes(exclude="number").columns
            yield f"inputs, standardised: {quote(self.examples.columns.difference(words, sort=False))}"
            if len(words):
                yield f"inputs, one for each word: {quote(words)}"


SourceData = LabelledDataset | ClientDataset | Federation
"""The result of a source: a data set to partition, clients with their own examples, or a federation."""


def _counts(names: Sequence[str], numbers: Tensor) -> list[tuple[str, int]]:
    return list(zip(names, torch.bincount(numbers, minlength=len(names)).tolist(), strict=True))


MOST_LISTED = 12
"""The maximum number of names per line in `ClientDataset.description`."""


@settings
class ClientSplit:
    """Fractions of each client's examples to hold out at random; the client trains on all other examples.

    Args:
        test_fraction: the fraction of each client's examples that are test examples. The number is rounded, and is at
            least 1 for a client with two or more examples. A group's test examples come from the group's clients.
        holdout_fraction: the fraction of each client's examples reserved for the risk estimators ``federated``,
            ``histogram`` and ``relative-histogram``; at least one example if above 0.
        shadow_fraction: the fraction of each client's examples in the server's shadow set; at least one example if
            above 0. A real server must get its shadow set from a different source.
        min_examples: the smallest number of examples per client. Shoal leaves out smaller clients and logs a warning.
            With too few examples for all fractions, a client trains on one example; test, hold-out and shadow set get
            the rest in this order.

    Raises:
        InputError: a value is outside its allowed range, or no fraction remains for training.
    """

    test_fraction: OpenFraction = 0.2
    holdout_fraction: _Part = 0.0
    shadow_fraction: _Part = 0.0
    min_examples: Positive = 1

    def __post_init__(self) -> None:
        total = self.test_fraction + self.holdout_fraction + self.shadow_fraction
        require(
            total < 1,
            f"'test_fraction', 'holdout_fraction' and 'shadow_fraction' must sum to less than 1 (got {total:g})",
        )

    def draw(self, data: ClientDataset, stream: Stream) -> PartitionIndices:
        """Draw each client's held-out examples, which depend only on the client's name and the stream.

        Raises:
            InputError: a group has no test example, or a class has no training example.
        """
        order = torch.argsort(data.client, stable=True).split(torch.bincount(data.client).tolist())
        parts: list[list[Tensor]] = [[], [], [], []]
        for name, own in zip(data.client_names, order, strict=True):
            counts = self._held_out(len(own))
            for part, indices in zip(parts, shuffle_parts(own, name, counts, stream), strict=True):
                part.append(indices)
        test, holdout, shadow, training = parts
        counted = [] if data.classes is None else _counts(data.class_names, data.labels)
        trained = [] if data.classes is None else _counts(data.class_names, data.labels[torch.cat(training)])
        for (name, count), (_, kept) in zip(counted, trained, strict=True):
            only = "its only example is" if count == 1 else f"all its {count} examples are"
            require(
                kept > 0,
                f"{data.name} has no training example of the class '{name}', as {only} held out; remove the class, "
                "add examples, or change 'seed'",
            )
        tested = _counts(data.group_names, data.example_group[torch.cat(test)])
        without = quote(name for name, count in tested if not count)
        require(
            not without,
            f"{data.name} has no test example of the group {without}, where each client has one example; add a "
            "client with two examples",
        )
        clients, held_out = map(ClientIndices.concatenate, (training, holdout))
        return PartitionIndices(clients, held_out, torch.cat(shadow), torch.cat(test))

    def _held_out(self, examples: int) -> list[int]:
        """Return the sizes of a client's test, hold-out and shadow sets, which leave at least one training example."""
        counts, left = [], examples - 1
        for fraction in (self.test_fraction, self.holdout_fraction, self.shadow_fraction):
            counts.append(min(left, held_out_count(examples, fraction)))
            left -= counts[-1]
        return counts


def federation_of_clients(
    data: ClientDataset, indices: PartitionIndices, preferences: Preferences, scale: Standardizer | None = None
) -> Federation:
    """Create the federation of clients that already have examples.

    Pictures are scaled to [0, 1]. Columns and regression targets are standardised by the clients' training examples, so
    a mean squared error of 1 is the error of predicting the mean.

    Args:
        data: the clients' examples.
        indices: the result of `ClientSplit.draw`.
        preferences: the clients' preferences.
        scale: the standardizer of the columns, by default fitted to all clients' training examples.

    Example:
        >>> import pandas as pd, shoal
        >>> from shoal.data import ClientDataset, ClientSplit, federation_of_clients
        >>> x, labels = pd.DataFrame({"age": map(float, range(20))}), ["ill", "healthy", "healthy", "ill"] * 5
        >>> data = ClientDataset.from_names("wards", x, clients=["a", "b"] * 10, labels=labels)
        >>> preferences = shoal.draw_preferences(2, (0.5, 0.8), "threshold", shoal.Stream(0))
        >>> federation = federation_of_clients(data, ClientSplit().draw(data, shoal.Stream(0)), preferences)
        >>> data.class_names, federation.names, federation.clients.sizes.tolist(), federation.test.y.shape
        (('healthy', 'ill'), ('a', 'b'), [8, 8], torch.Size([4]))
    """
    x, y = _scaled(data, data.standardizer(indices) if scale is None else scale), data.labels
    if data.classes is None:
        trained = y[indices.clients.indices]
        y = ((y - trained.mean(dim=0)) / trained.std(dim=0, correction=0).clamp(min=1e-12)).float()

    def shards(rows: Tensor, sizes: Tensor) -> Shards:
        return Shards.from_contiguous(gather(x, rows), y[rows], sizes)

    def examples(rows: Tensor) -> GroupedExamples:
        client = data.client[rows]
        return GroupedExamples(gather(x, rows), y[rows], data.example_group[rows], client)

    rows = {"clients": indices.clients.indices, "holdout": indices.holdout.indices, "test": indices.test}
    return Federation(
        clients=shards(*indices.clients),
        holdout=shards(*indices.holdout),
        shadow=examples(indices.shadow),
        test=examples(indices.test),
        ids=torch.arange(len(data.client_names)),
        group=data.group,
        groups=data.group_names,
        preferences=preferences,
        classes=data.classes,
        names=data.client_names,
        origins={part: partial(numbered_name, data.origin, numbers) for part, numbers in rows.items()},
        own_inputs=True,
        row_groups={}
        if data.row_group is None
        else {part: data.row_group[rows[part]] for part in ("clients", "holdout")},
    )


def _scaled(data: ClientDataset, scale: Standardizer | None) -> Tensor:
    """Return the inputs as float32."""
    if isinstance(data.examples, Tensor):
        return to_channels_first(data.examples.permute(0, 2, 3, 1).contiguous().float() / 255)
    assert scale is not None
    require(
        data.inputs == scale.inputs,
        f"{data.name} must have the inputs {quote(scale.inputs)}, like the federation (got {quote(data.inputs)})",
    )
    return scale.transform(data.examples)
