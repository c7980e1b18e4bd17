"""The parameter tree of clustered federated learning: what the server remembers of every split.

Source: Sattler, Mueller, Samek 2019, arXiv:1910.01991, section on clients that join later (its Algorithm 4).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from shoal.engine import Tensors

_NAMES = ("split", "cluster", "models", "updates", "owner")


@dataclass(frozen=True, eq=False)
class ParameterTree:
    """S splits in the order in which they happened. Node 0 is the root; split s made the nodes 2 s + 1 and 2 s + 2.

    Args:
        split: (S,) int64, the node that each split divided.
        cluster: (2 S + 1,) int64, the model of each node; of a divided one, that of its first part.
        models: (S, P) float32, the model that was divided, as clients trained it in that round.
        updates: (U, d) float32, the updates by which parts were told apart, with norm 1 (or 0).
        owner: (U,) int64, the part, a node, of the client that sent each.
    """

    split: Tensor
    cluster: Tensor
    models: Tensor
    updates: Tensor
    owner: Tensor

    @staticmethod
    def root(parameters: int, size: int) -> "ParameterTree":
        """The tree before any split, for models of P ``parameters`` and updates of d = ``size`` numbers."""
        none = torch.zeros(0, dtype=torch.int64)
        return ParameterTree(none, none.new_zeros(1), torch.zeros(0, parameters), torch.zeros(0, size), none.clone())

    @staticmethod
    def of(server: Tensors) -> "ParameterTree":
        """That of `State.server`."""
        return ParameterTree(*(server[f"cfl.{name}"] for name in _NAMES))

    def tensors(self) -> Tensors:
        """As entries of `State.server`."""
        return {f"cfl.{name}": getattr(self, name) for name in _NAMES}

    def split_of(self, nodes: Tensor) -> Tensor:
        """(w,) int64, the split that divided each of the ``nodes`` (w,); -1 where none did."""
        found = torch.full((len(self.cluster),), -1, dtype=torch.int64)
        found[self.split] = torch.arange(len(self.split))
        return found[nodes]

    def below(self, nodes: Tensor, updates: Tensor, admission: float = -1.0) -> Tensor:
        """(w,) int64, the part of each divided node that has the client with the most similar update.

        Args:
            nodes: (w,) int64, all divided.
            updates: (w, d), what w clients sent from the models that were divided.
            admission: the cosine that the most similar update must have at least; who has no such one stays at its
                node. -1: nobody stays.
        """
        reached = []
        for node, s, update in zip(nodes.tolist(), self.split_of(nodes).tolist(), unit(updates), strict=True):
            parts = 2 * s + 1, 2 * s + 2
            first, second = (float((self.updates[self.owner == part] @ update).max()) for part in parts)
            part = parts[0] if first >= second else parts[1]
            # At -1 nobody may be refused by a last bit below it.
            reached.append(part if admission <= -1 or max(first, second) >= admission else node)
        return torch.tensor(reached, dtype=torch.int64)

    def divided(self, node: int, model: Tensor, updates: Tensor, second: Tensor) -> "ParameterTree":
        """The tree after one more split; the second part gets the next model.

        Args:
            node: what is divided.
            model: (P,), as clients trained it.
            updates: (m, d), of its clients.
            second: (m,) bool, who is in the second part.
        """
        new = torch.stack([self.cluster[node], self.cluster.max() + 1])
        return replace(
            self,
            split=torch.cat([self.split, torch.tensor([node])]),
            cluster=torch.cat([self.cluster, new]),
            models=torch.cat([self.models, model[None].to(self.models)]),
            updates=torch.cat([self.updates, unit(updates)]),
            owner=torch.cat([self.owner, len(self.cluster) + second.long()]),
        )


def unit(updates: Tensor) -> Tensor:
    """(m, d) with norm 1 each; zeros stay.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    return torch.nn.functional.normalize(updates, dim=1)
