"""The clients of a round, as an algorithm sees them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from shoal.core.layout import Layout
from shoal.core.randomness import Stream
from shoal.core.representation import one_line
from shoal.data.preferences import Preferences
from shoal.data.shards import entries_of
from shoal.engine.local_sgd import LocalSGD


@dataclass(frozen=True, eq=False)
class Cohort:
    """The n clients of a round, as an algorithm sees them.

    Args:
        round: number of the round, from 1.
        clients: (n,) int64, positions in the federation.
        sizes: (n,) int64, examples of each.
        preferences: thresholds and weights of risk, (n,) each.
        local: local training in this round, at its learning rate.
        layout: of a model's parameter vector.
        scores: computes losses (n, K); see `losses`.
        stream: for the server's random draws in this round. Clients come in the order of their ids, so draws by
            position do not depend on the order of clients in the federation.
        example_scores: computes losses (m, K); see `example_losses`.
        labels: (m,) of all the clients' examples, client by client; (m, d) in a regression.

    Example:
        >>> import torch, shoal.toy
        >>> federation, model, local = shoal.toy.two_groups()
        >>> with shoal.Engine(model) as engine:
        ...     training = shoal.Training(federation, shoal.IFCA(clusters=2), local, engine, shoal.Stream(0))
        ...     state = training.start()
        ...     cohort = training.cohort_of(state, torch.tensor([0, 1]))
        ...     losses = cohort.losses(state.models)
        ...
        >>> len(cohort), losses.shape, cohort.owners.tolist(), cohort.take(torch.tensor([1])).sizes
        (2, torch.Size([2, 2]), [0, 0, 1, 1], tensor([2]))
    """

    round: int
    clients: Tensor
    sizes: Tensor
    preferences: Preferences
    local: LocalSGD
    layout: Layout
    scores: Callable[[Tensor, Literal["all", "batch"]], Tensor]
    stream: Stream
    example_scores: Callable[[Tensor], Tensor]
    labels: Tensor
    __repr__ = one_line

    def __len__(self) -> int:
        return len(self.clients)

    def losses(self, models: Tensor, examples: Literal["all", "batch"] = "all") -> Tensor:
        """The mean loss of each model on each client's data: (K, P) -> (n, K) float64.

        Args:
            models: (K, P).
            examples: "all" of a client's own, or the first "batch" of this round's training.
        """
        return self.scores(models, examples)

    def example_losses(self, models: Tensor) -> Tensor:
        """The loss of each model on each of the clients' m examples, client by client: (K, P) -> (m, K) float64."""
        return self.example_scores(models)

    @property
    def owners(self) -> Tensor:
        """(m,) int64, the client of each example, as a position among the n."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)

    def means(self, values: Tensor) -> Tensor:
        """Means per client of values per example: (m, d) -> (n, d) float64."""
        total = torch.zeros(len(self), values.shape[1], dtype=torch.float64)
        return total.index_add_(0, self.owners, values.double()) / self.sizes[:, None]

    def take(self, clients: Tensor) -> "Cohort":
        """The cohort restricted to the clients at ``clients`` (u,)."""
        entries = entries_of(self.sizes, clients)
        return replace(
            self,
            clients=self.clients[clients],
            sizes=self.sizes[clients],
            preferences=self.preferences.take(clients),
            scores=lambda models, examples: self.scores(models, examples)[clients],
            example_scores=lambda models: self.example_scores(models)[entries],
            labels=self.labels[entries],
        )
