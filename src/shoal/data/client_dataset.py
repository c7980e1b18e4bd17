"""Examples that clients have already, as in a table with a client column: split within each client, never dealt out."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import quoted, require
from shoal.core.randomness import Stream
from shoal.core.settings import OpenFraction, Positive, settings
from shoal.data.datasets import LabelledDataset
from shoal.data.federation import Federation
from shoal.data.grouped_examples import GroupedExamples
from shoal.data.groups import EVERYBODY, require_group_names
from shoal.data.memory_format import gather, to_channels_first
from shoal.data.partition import PartitionIndices
from shoal.data.preferences import Preferences
from shoal.data.shards import Shards
from shoal.data.user.arrays import Impute
from shoal.data.user.names import alike, groups_of_clients, numbered
from shoal.data.user.origins import NameOf, at
from shoal.data.user.standardizer import Standardizer, Words

_Part = Annotated[float, Field(ge=0, lt=1, strict=True)]


@dataclass(frozen=True, eq=False)
class ClientDataset:
    """Labelled examples of N named clients; see `from_names`.

    Attributes:
        name: of the file or folder, in sentences.
        x: pictures (M, C, H, W) uint8, or rows of a table (M, F) float64, not standardised.
        labels: (M,) int64, the classes by their numbers.
        client: (M,) int64, whose each example is.
        group: (N,) int64, each client's group.
        class_names: by number.
        client_names: by number.
        group_names: by number.
        inputs: names of the F columns; none for pictures.
        words: of each column its words, of which ``x`` has the places; none where it holds numbers.
        impute: what stands for empty cells, which are NaN; None: there are none.
        warnings: what a user should know before training, a sentence each.
        origin: what the file or folder calls its example of a number.

    Example:
        >>> import torch
        >>> from shoal.data import ClientDataset
        >>> x, names = torch.arange(4.0)[:, None].double(), ["ward 2", "ward 10", "ward 2", "ward 10"]
        >>> data = ClientDataset.from_names("wards", x, clients=names, labels=["ill", "healthy", "ill", "ill"])
        >>> data.client_names, data.client.tolist()
        (('ward 10', 'ward 2'), [1, 0, 1, 0])
        >>> data.class_names, data.labels.tolist(), data.shares
        (('healthy', 'ill'), [1, 0, 1, 1], {'all': 1.0})
    """

    name: str
    x: Tensor
    labels: Tensor
    client: Tensor
    group: Tensor
    class_names: tuple[str, ...]
    client_names: tuple[str, ...]
    group_names: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    words: Words = ()
    impute: Impute | None = None
    warnings: tuple[str, ...] = ()
    origin: NameOf = str

    @property
    def kind(self) -> str:
        """What the examples are, in the plural, as `shoal.Federation.kind`: images, or rows of a table."""
        return "images" if self.x.dim() == 4 else "rows"

    @property
    def classes(self) -> int:
        """C, the number of classes."""
        return len(self.class_names)

    @property
    def shares(self) -> dict[str, float]:
        """Each group's fraction of the clients."""
        counts = torch.bincount(self.group, minlength=len(self.group_names)).tolist()
        return {name: count / len(self.group) for name, count in zip(self.group_names, counts, strict=True)}

    @staticmethod
    def from_names(
        name: str,
        x: Tensor,
        *,
        clients: Sequence[str],
        labels: Sequence[str],
        groups: Sequence[str] | None = None,
        inputs: Sequence[str] = (),
        words: Words = (),
        impute: Impute | None = None,
        warnings: Sequence[str] = (),
        origin: NameOf = str,
    ) -> "ClientDataset":
        """Number the clients, classes and groups that M examples name, each in sorted order.

        Args:
            name: of the file or folder, in sentences.
            x: the M inputs.
            clients, labels: (M,) names.
            groups: (M,) names; None: one group, ``all``.
            inputs, words, impute, warnings, origin: as in `ClientDataset`.

        Raises:
            InputError: no example, one class only, a client in several groups, or a name that no group can have.
        """
        require(len(labels) > 0, f"{name} has no examples; at least one client with a few is needed")
        client, client_names = numbered(clients)
        y, class_names = numbered(labels)
        of_example, group_names = numbered([EVERYBODY] * len(labels) if groups is None else groups)
        require(
            len(class_names) > 1, f"{name} has examples of the class '{class_names[0]}' only; at least 2 are needed"
        )
        require_group_names(group_names)
        named = (("clients", client_names), ("classes", class_names), ("groups", group_names))
        return ClientDataset(
            name=name,
            x=x,
            labels=y,
            client=client,
            group=groups_of_clients(name, (client, client_names), (of_example, group_names)),
            class_names=class_names,
            client_names=client_names,
            group_names=group_names,
            inputs=tuple(inputs),
            words=words,
            impute=impute,
            warnings=(*warnings, *(f"{name}: {each}" for each in alike(named))),
            origin=origin,
        )

    def with_at_least(self, examples: int) -> "ClientDataset":
        """Without the clients that have fewer examples, of whom a warning says.

        Raises:
            InputError: there is no other client; or as `from_names` of the others.
        """
        counts = torch.bincount(self.client, minlength=len(self.client_names))
        few = torch.nonzero(counts < examples).flatten().tolist()
        if not few:
            return self
        kept = torch.nonzero(counts[self.client] >= examples).flatten()
        require(
            len(kept) > 0,
            f"{self.name}: 'min_examples' is {examples}, which leaves out all clients; the largest has {counts.max()}",
        )
        left_out = _listed([self.client_names[i] for i in few[:10]], counts[few[:10]].tolist(), numbers=False)
        more = f" and {len(few) - 10} more" if len(few) > 10 else ""
        whose = f"{len(few)} client{'s' * (len(few) > 1)} with fewer than {examples} examples"
        said = f"{self.name}: left out {whose}: {left_out}{more}"
        of_client = self.client[kept].tolist()
        left = ClientDataset.from_names(
            self.name,
            self.x[kept],
            clients=[self.client_names[i] for i in of_client],
            labels=[self.class_names[i] for i in self.labels[kept].tolist()],
            groups=[self.group_names[i] for i in self.group[of_client].tolist()],
            inputs=self.inputs,
            words=self.words,
            impute=self.impute,
            origin=partial(at, self.origin, kept),
        )
        return replace(left, warnings=(*self.warnings, said))

    def input_scale(self, indices: PartitionIndices) -> Standardizer | None:
        """What all clients' training examples make of columns; None of pictures."""
        if self.x.dim() == 4:
            return None
        return Standardizer.of(self.inputs, self.x[torch.cat(indices.clients)], self.words, self.impute)

    def description(self) -> Iterator[str]:
        """What the numbers of results stand for, in lines."""
        of_client = torch.bincount(self.client, minlength=len(self.client_names)).tolist()
        of_class = torch.bincount(self.labels, minlength=self.classes).tolist()
        of_group = torch.bincount(self.group, minlength=len(self.group_names)).tolist()
        yield "clients, by number (examples): " + _listed(self.client_names, of_client, numbers=True)
        yield "groups (clients): " + _listed(self.group_names, of_group, numbers=False)
        yield "classes, by number (examples): " + _listed(self.class_names, of_class, numbers=True)
        if self.x.dim() == 4:
            _, channels, height, width = self.x.shape
            yield f"inputs: pictures of {height}x{width}, {'grey' if channels == 1 else 'RGB'}"
        else:
            of_words = [name for name, words in zip(self.inputs, self.words, strict=False) if words]
            yield f"inputs, standardised: {quoted(name for name in self.inputs if name not in of_words)}"
            if of_words:
                yield f"inputs, one for each word: {quoted(of_words)}"


SourceData = LabelledDataset | ClientDataset | Federation
"""What a source returns: a set to be partitioned, clients with their own examples, or the federation itself."""


def _listed(names: Sequence[str], counts: Sequence[int], *, numbers: bool) -> str:
    pairs = enumerate(zip(names, counts, strict=True))
    return ", ".join(f"{f'{i} ' if numbers else ''}'{name}' ({count:,})" for i, (name, count) in pairs)


@settings
class ClientSplit:
    """Which fraction of each client's examples is held out, drawn at random; it trains on the rest.

    Args:
        test_fraction: of each client's examples, for measuring; rounded, and at least one example of a client with
            several. A group's test examples are those of its clients.
        holdout_fraction: kept by the client for the estimators of risk ``federated`` and ``histogram``; above 0 at
            least one example.
        shadow_fraction: given to the server as its shadow set; above 0 at least one example. A federation in use would
            need such examples from elsewhere.
        min_examples: clients with fewer are left out, with a warning. A client with too few for all parts keeps one to
            train on, then has test, holdout and shadow examples, in this order.

    Raises:
        InputError: a value outside its range, or fractions that leave nothing to train on.

    Example:
        >>> import torch, shoal
        >>> from shoal.data import ClientDataset, ClientSplit
        >>> x = torch.arange(20.0)[:, None].double()
        >>> labels = ["ill", "healthy", "healthy", "ill"] * 5
        >>> data = ClientDataset.from_names("wards", x, clients=["a", "b"] * 10, labels=labels)
        >>> indices = ClientSplit(test_fraction=0.2, holdout_fraction=0.1).draw(data, shoal.Stream(0))
        >>> [len(each) for each in indices.clients], [len(each) for each in indices.holdout], len(indices.test)
        ([7, 7], [1, 1], 4)
    """

    test_fraction: OpenFraction = 0.2
    holdout_fraction: _Part = 0.0
    shadow_fraction: _Part = 0.0
    min_examples: Positive = 1

    def __post_init__(self) -> None:
        total = self.test_fraction + self.holdout_fraction + self.shadow_fraction
        require(
            total < 1,
            "'test_fraction', 'holdout_fraction' and 'shadow_fraction' must sum to less than 1, or there is nothing to "
            f"train on; got {total:g}",
        )

    def draw(self, data: ClientDataset, stream: Stream) -> PartitionIndices:
        """Draw which of each client's examples are for what; a client's draw depends on its name and the stream only.

        Raises:
            InputError: a group without a test example, or a class of which no client has a training example.
        """
        order = torch.argsort(data.client, stable=True).split(torch.bincount(data.client).tolist())
        parts: list[list[Tensor]] = [[], [], [], []]
        for name, own in zip(data.client_names, order, strict=True):
            counts = self._held_out(len(own))
            shuffled = own[torch.from_numpy(stream("split", name).numpy().permutation(len(own)))]
            for part, indices in zip(parts, shuffled.split([*counts, len(own) - sum(counts)]), strict=True):
                part.append(indices)
        test, holdout, shadow, training = parts
        _require_trained(data, torch.cat(training))
        tested = torch.bincount(data.group[data.client[torch.cat(test)]], minlength=len(data.group_names))
        without = quoted(name for name, count in zip(data.group_names, tested.tolist(), strict=True) if not count)
        require(
            not without,
            f"{data.name} has no test example of the group {without}, whose clients have one example each; it needs a "
            "client with two",
        )
        return PartitionIndices(training, holdout, torch.cat(shadow), torch.cat(test))

    def _held_out(self, examples: int) -> list[int]:
        """Of so many examples of a client, how many are for test, holdout and shadow set; at least one is left."""
        counts, left = [], examples - 1
        for fraction in (self.test_fraction, self.holdout_fraction, self.shadow_fraction):
            counts.append(min(left, max(1, round(fraction * examples)) if fraction > 0 else 0))
            left -= counts[-1]
        return counts


def _require_trained(data: ClientDataset, training: Tensor) -> None:
    """Raise where no training example is of a class."""
    trained = torch.bincount(data.labels[training], minlength=data.classes)
    counts = torch.bincount(data.labels, minlength=data.classes)
    missing = torch.nonzero(trained == 0).flatten().tolist()
    if missing:
        count = int(counts[missing[0]])
        which = "its only example is" if count == 1 else f"all its {count} examples are"
        require(
            False,
            f"{data.name} has no training example of the class '{data.class_names[missing[0]]}', since {which} held "
            "out; leave the class out, give it more examples, or choose another 'seed'",
        )


def federation_of_clients(
    data: ClientDataset, indices: PartitionIndices, preferences: Preferences, scale: Standardizer | None = None
) -> Federation:
    """The federation of clients that have their examples already.

    Pictures are scaled to [0, 1]; columns are standardised, a column that is constant becoming 0.

    Args:
        data: the examples.
        indices: which of them are for what, as `ClientSplit.draw` returns them.
        preferences: of the N clients.
        scale: of columns; None: that of all clients' training examples.

    Raises:
        InputError: the scale of other columns.

    Example:
        >>> import torch, shoal
        >>> from shoal.data import ClientDataset, ClientSplit, federation_of_clients
        >>> x, labels = torch.arange(20.0)[:, None].double(), ["ill", "healthy", "healthy", "ill"] * 5
        >>> names = {"clients": ["a", "b"] * 10, "labels": labels, "inputs": ["age"]}
        >>> data = ClientDataset.from_names("wards", x, **names)
        >>> preferences = shoal.draw_preferences(2, (0.5, 0.8), "threshold", shoal.Stream(0))
        >>> federation = federation_of_clients(data, ClientSplit().draw(data, shoal.Stream(0)), preferences)
        >>> federation.names, federation.clients.sizes.tolist(), federation.test.y.shape
        (('a', 'b'), [8, 8], torch.Size([4]))
        >>> used = federation.clients.x[federation.clients.indices]
        >>> abs(float(used.mean())) < 1e-6, round(float(used.std(unbiased=False)), 3)
        (True, 1.0)
    """
    x = _scaled(data, data.input_scale(indices) if scale is None else scale)

    def shards(parts: list[Tensor]) -> Shards:
        own, sizes = torch.cat(parts), torch.tensor([len(part) for part in parts])
        return Shards.from_contiguous(gather(x, own), data.labels[own], sizes)

    def examples(held: Tensor) -> GroupedExamples:
        own = data.client[held]
        return GroupedExamples(gather(x, held), data.labels[held], data.group[own], own)

    return Federation(
        clients=shards(indices.clients),
        holdout=shards(indices.holdout),
        shadow=examples(indices.shadow),
        test=examples(indices.test),
        ids=torch.arange(len(data.client_names)),
        group=data.group,
        groups=data.group_names,
        preferences=preferences,
        classes=data.classes,
        names=data.client_names,
        origins={
            part: partial(at, data.origin, rows)
            for part, rows in (
                ("clients", torch.cat(indices.clients)),
                ("holdout", torch.cat(indices.holdout)),
                ("test", indices.test),
            )
        },
        own_inputs=True,
    )


def _scaled(data: ClientDataset, scale: Standardizer | None) -> Tensor:
    """The inputs as float32."""
    if scale is None:
        return to_channels_first(data.x.permute(0, 2, 3, 1).contiguous().float() / 255)
    require(
        data.inputs == scale.inputs,
        f"{data.name} has the inputs {quoted(data.inputs)}, where others have {quoted(scale.inputs)}",
    )
    return scale.applied(data.x, data.words)
