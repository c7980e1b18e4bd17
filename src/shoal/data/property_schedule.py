"""Who holds a property in a federation, and in which rounds the victim trains on it.

Source: Melis, Song, De Cristofaro, Shmatikov 2019, arXiv:1805.04049, section VII; Kim et al., RAID 2023, section 4.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from shoal.data.shards import Shards


@dataclass(frozen=True, eq=False)
class PropertySchedule:
    """A property that one client's training examples hold, beside the attacker's.

    In every ``every``-th round the victim trains on examples with the property alone, and in all others on examples
    without it alone, so that there is something to tell apart.

    Args:
        holds: (M,) bool, which of the clients' examples hold the property.
        test_holds: (M',) bool, which of the test examples do.
        victim: id of the client that holds it.
        attacker: id of the client that looks for it.
        every: rounds from one with the property to the next.
    """

    holds: Tensor
    test_holds: Tensor
    victim: int
    attacker: int
    every: int

    def present(self, number: int) -> bool:
        """Whether the victim trains on the property in a round."""
        return number % self.every == 0

    def in_round(self, clients: Shards, ids: Tensor, number: int) -> Shards:
        """What the clients (shards of all their examples, named ``ids``) train on in a round."""
        rows = [clients.owned(i) for i in range(len(clients))]
        for i in torch.nonzero(ids == self.victim).flatten().tolist():
            rows[i] = rows[i][self.holds[rows[i]] == self.present(number)]
        sizes = torch.tensor([len(each) for each in rows])
        return Shards.dealt(clients.x, clients.y, torch.cat(rows), sizes)
