"""Losses that are changed on their way to the algorithm that chooses by them; for wrappers of algorithms."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from shoal.engine import Cohort


class ChangedLosses:
    """A cohort that sees other losses of the clusters' models, of clients and of single examples.

    Args:
        cohort: as it is.
        clusters: K; losses of another number of vectors, such as a client's own model, stay as they are.
        change: from losses (r, K), and whose each row is (r,), positions in the cohort, to what is seen instead.

    Attributes:
        cohort: for the algorithm.
    """

    def __init__(self, cohort: Cohort, clusters: int, change: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._before, self._clusters, self._change = cohort, clusters, change
        self._of_clients, self._of_examples = list[tuple[Tensor, Tensor]](), list[tuple[Tensor, Tensor]]()
        self.cohort = replace(cohort, scores=self._scores, example_scores=self._example_scores)

    def recorded(self, losses: Tensor | None) -> Tensor | None:
        """The losses (n, K) of a plan as they were before the change; others than the cohort's stay as they are."""
        for before, after in self._of_clients:
            if after is losses:
                return before
        for before, after in self._of_examples:
            if losses is not None and torch.equal(self._before.means(after), losses):
                return self._before.means(before)
        return losses

    def _scores(self, models: Tensor, examples: Literal["all", "batch"]) -> Tensor:
        losses = self._before.scores(models, examples)
        return self._changed(losses, torch.arange(len(losses)), self._of_clients)

    def _example_scores(self, models: Tensor) -> Tensor:
        return self._changed(self._before.example_scores(models), self._before.owners, self._of_examples)

    def _changed(self, losses: Tensor, clients: Tensor, seen: list[tuple[Tensor, Tensor]]) -> Tensor:
        if losses.shape[1] != self._clusters:
            return losses
        seen.append((losses, self._change(losses, clients)))
        return seen[-1][1]
