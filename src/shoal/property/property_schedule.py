"""Which examples have a property, and in which rounds the victim trains on them.

Source: Melis, Song, De Cristofaro, Shmatikov 2019, arXiv:1805.04049, section VII; Kim et al., RAID 2023, section 4.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.core.representation import one_line
from shoal.data.shards import Shards


@dataclass(frozen=True, eq=False)
class PropertySchedule:
    """A property that only the training examples of the victim and of the attacker have, and the victim's schedule.

    In every ``period``-th round the victim trains only on its examples with the property, in all other rounds only on
    those without: the attacker's task is to tell these rounds apart.

    Args:
        has_property: (M,) bool, which of the clients' examples have the property.
        test_has_property: (M',) bool, which of the test examples have it.
        victim: id of the client that the attack is about.
        attacker: id of the client that attacks.
        period: rounds from one with the property to the next.

    Source: Melis, Song, De Cristofaro, Shmatikov 2019, arXiv:1805.04049, section VII; Kim et al., RAID 2023, section 4.

    Example:
        >>> import torch, shoal
        >>> has_property = torch.tensor([True, False, True, False])
        >>> schedule = shoal.PropertySchedule(has_property, has_property, victim=1, attacker=0, period=3)
        >>> [schedule.present(number) for number in range(1, 7)]
        [False, False, True, False, False, True]
    """

    has_property: Tensor
    test_has_property: Tensor
    victim: int
    attacker: int
    period: int
    __repr__ = one_line

    def present(self, number: int) -> bool:
        """True if the victim trains on the property in round ``number``, counted from 1."""
        return number % self.period == 0

    def in_round(self, clients: Shards, ids: Tensor, number: int) -> Shards:
        """The shards that the clients train on in a round, out of ``clients``, all their examples; ids (N,) int64."""
        indices = [clients.owned(i) for i in range(len(clients))]
        for i in torch.nonzero(ids == self.victim).flatten().tolist():
            indices[i] = self._of_victim(indices[i], present=self.present(number))
        sizes = torch.tensor([len(each) for each in indices])
        return Shards.from_indices(clients.x, clients.y, torch.cat(indices), sizes)

    def swapped(self, clients: Shards, ids: Tensor, number: int) -> Shards:
        """The victim's shard as it would be if round ``number`` were of the other kind: one owner, or none."""
        owners = torch.nonzero(ids == self.victim).flatten()
        indices = [self._of_victim(clients.owned(i), present=not self.present(number)) for i in owners.tolist()]
        sizes = torch.tensor([len(each) for each in indices], dtype=torch.int64)
        return Shards.from_indices(clients.x, clients.y, torch.cat([owners[:0], *indices]), sizes)

    def _of_victim(self, indices: Tensor, *, present: bool) -> Tensor:
        return indices[self.has_property[indices] == present]
