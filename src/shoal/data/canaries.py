"""Canaries: training examples with a wrong label, half of which are left out, so that both can be told apart later.

Source: Aerni, Zhang, Tramer 2024, CCS, arXiv:2404.17399, section 4: mislabelled examples are among the most exposed
ones, and the membership of canaries must be drawn independently of everything else. What differs here: a canary is one
of its client's own examples, not an additional one.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from shoal.core.errors import require
from shoal.core.randomness import Stream
from shoal.core.representation import one_line
from shoal.core.settings import Count, Positive, settings
from shoal.data.federation import Federation
from shoal.data.memory_format import gather
from shoal.data.shards import Shards


@dataclass(frozen=True, eq=False)
class Canaries:
    """M mislabelled examples, of which some are trained on.

    Args:
        x: (M, ...) their inputs.
        y: (M,) int64, their wrong labels.
        true_label: (M,) int64, their labels before.
        client: (M,) int64, the id of each canary's client.
        record: (M,) int64, the position of each among the examples that its client had before.
        member: (M,) bool, whether it is trained on, with the wrong label; the others are in no training set.
    """

    x: Tensor
    y: Tensor
    true_label: Tensor
    client: Tensor
    record: Tensor
    member: Tensor
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.y)


@settings
class MislabelledCanaries:
    """Canaries among the clients' training examples: some examples get a wrong label, and a fair coin decides for each
    whether it is trained on or left out.

    A canary takes the place of one of its client's own examples, so a client trains on as many examples as before less
    the canaries that are left out, about half of ``per_client``. The example with its right label is trained on in
    neither case. Canaries that are trained on count as training examples, and as members, in all other figures.

    Args:
        per_client: canaries of each of these clients, drawn from its own examples; 0: none.
        clients: how many clients get them, drawn from those with more than ``per_client`` examples; ``all``: all of
            those.

    Example:
        >>> import shoal
        >>> digits = ([[float(i)] for i in range(10)], [0, 1] * 5)
        >>> federation = shoal.Federation.from_tensors([digits] * 3, test=digits)
        >>> watched, canaries = shoal.MislabelledCanaries(per_client=4).insert(federation, shoal.Stream(0))
        >>> len(canaries.member), bool((canaries.y != canaries.true_label).all()), watched.clients.sizes.tolist()
        (12, True, [10, 9, 7])
    """

    per_client: Count = 0
    clients: Positive | Literal["all"] = "all"

    def check(self, sizes: Tensor) -> None:
        """Raise `InputError` where too few clients have enough examples; ``sizes`` (N,) int64 are their numbers."""
        enough, wanted = int((sizes > self.per_client).sum()), 1 if self.clients == "all" else self.clients
        require(
            self.per_client == 0 or enough >= wanted,
            f"'per_client' = {self.per_client} canaries need 'clients' with more examples than that, at least {wanted} "
            f"of them; {enough} of {len(sizes)} have more",
        )

    def insert(self, federation: Federation, stream: Stream) -> tuple[Federation, Canaries]:
        """The federation that trains on the canaries, and all canaries.

        A client's canaries depend on the stream, its id and the number of its examples, never on its position. Inputs
        are shared with ``federation``, which is left as it was; without canaries it is returned itself. Wrong labels
        are uniform over the others.

        Raises:
            InputError: too few clients with more than ``per_client`` examples, a single class, clients that share
                examples, or a federation in which a client has a schedule.
        """
        shards = federation.clients
        self.check(shards.sizes)
        chosen = self._clients(federation, stream)
        if len(chosen):
            classes = federation.classes or 0
            require(classes >= 2, f"canaries need a wrong label, so at least 2 classes; got {classes}")
            require(federation.schedule is None, "canaries do not go together with a property attack")
            shared = len(shards.indices) - len(shards.indices.unique())
            require(shared == 0, f"canaries need clients with examples of their own; {shared} are of several clients")
        none = torch.empty(0, dtype=torch.int64)
        drawn = [(none, none, none, none, none.bool()), *(self._drawn(federation, i, stream) for i in chosen)]
        row, y, client, record, member = (torch.cat(parts) for parts in zip(*drawn, strict=True))
        canaries = Canaries(gather(shards.x, row), y, shards.y[row], client, record, member)
        if not len(canaries):
            return federation, canaries
        labels = shards.y.clone()
        labels[row] = y
        left_out = torch.isin(shards.indices, row[~member])
        sizes = torch.bincount(shards.owners()[~left_out], minlength=len(shards))
        trained = Shards.from_indices(shards.x, labels, shards.indices[~left_out], sizes, mapped=shards.mapped)
        return replace(federation, clients=trained), canaries

    def _clients(self, federation: Federation, stream: Stream) -> list[int]:
        """Positions of the clients that get canaries, in order."""
        if self.per_client == 0:
            return []
        able = torch.nonzero(federation.clients.sizes > self.per_client).flatten()
        if self.clients == "all":
            return able.tolist()
        order = stream("clients").seeds(federation.ids[able]).argsort()
        return sorted(able[order[: self.clients]].tolist())

    def _drawn(self, federation: Federation, position: int, stream: Stream) -> tuple[Tensor, ...]:
        """One client's canaries (m,): rows of its inputs, wrong labels, its id, records, membership."""
        client, own = int(federation.ids[position]), federation.clients.owned(position)
        order = torch.randperm(len(own), generator=stream("records", client).generator())
        record = order[: self.per_client].sort().values
        wrong, member, others = [], [], (federation.classes or 0) - 1
        for number, label in zip(record.tolist(), federation.clients.y[own[record]].tolist(), strict=True):
            draw = stream("canary", client, number).generator()
            member.append(bool(torch.randint(0, 2, (), generator=draw)))
            other = int(torch.randint(0, others, (), generator=draw))
            wrong.append(other + (other >= label))
        return own[record], torch.tensor(wrong), torch.full_like(record, client), record, torch.tensor(member)
