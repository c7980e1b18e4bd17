"""Sums of X'X and X'y over the clients of a model, reused while assignments stay as they are."""

import torch
from mixture import Mixture
from torch import Tensor

_MIN_UNCHANGED = 5
"""Updates without a change of assignment before a run gets sums of its own: they cost as much as many rounds."""

_MAX_CHANGED = 50
"""A run's own sums are corrected when at most 1 in so many clients changed, and dropped otherwise."""


class NormalEquations:
    """The sums of each of ``runs`` runs of ``p`` models.

    A run in which the clients of each true cluster all have the same model uses the sums of the clusters
    (`Mixture.normal_equations`); another gets its own, made from those.

    Attributes:
        ready: (runs,) bool, true where a run's sums are those of its current assignment.
    """

    def __init__(self, mixture: Mixture, runs: int, p: int) -> None:
        self.mixture = mixture
        self.ready = torch.zeros(runs, dtype=torch.bool)
        self._first = torch.stack([(mixture.cluster == j).nonzero()[0, 0] for j in range(len(mixture.truth))])
        self._assignment = torch.full((runs, len(mixture.cluster)), -1)
        self._unchanged = [0] * runs
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._p = p

    def update(self, runs: Tensor, assignments: Tensor) -> None:
        """New assignments (m, a) of ``runs`` (a,)."""
        for run, assignment in zip(runs.tolist(), assignments.T, strict=True):
            changed = int((assignment != self._assignment[run]).sum())
            self._unchanged[run] = 0 if changed else self._unchanged[run] + 1
            if bool((assignment == assignment[self._first][self.mixture.cluster]).all()):
                self._own.pop(run, None)
                self.ready[run] = True
            else:
                self.ready[run] = self._update_own(run, assignment, changed)
            self._assignment[run] = assignment

    def gradient(self, runs: Tensor, models: Tensor) -> Tensor:
        """The gradients of `gradient_descent.losses_and_gradients`, of ``runs`` (a,) at ``models`` (a, p, d)."""
        m, n, _ = self.mixture.x.shape
        gradient = torch.zeros_like(models)
        has_own = torch.tensor([run in self._own for run in runs.tolist()])
        for i in torch.nonzero(has_own).flatten().tolist():
            xx, xy = self._own[int(runs[i])]
            gradient[i] = torch.bmm(xx, models[i][:, :, None])[:, :, 0] - xy
        others = torch.nonzero(~has_own).flatten()
        model_of = self._assignment[runs[others]][:, self._first]
        for xx, xy, model in zip(*self.mixture.normal_equations, model_of.T, strict=True):
            gradient[others, model] += models[others, model] @ xx - xy
        return (2 / (m * n)) * gradient

    def _update_own(self, run: int, assignment: Tensor, changed: int) -> bool:
        """Bring a run's own sums up to ``assignment``; False where it has none and does not get any yet."""
        if run in self._own:
            if changed * _MAX_CHANGED <= len(assignment):
                self._move(run, self._assignment[run], assignment)
                return True
            del self._own[run]
            return False
        if self._unchanged[run] < _MIN_UNCHANGED:
            return False
        votes = torch.nn.functional.one_hot(assignment, self._p)
        usual = torch.stack([votes[self.mixture.cluster == j].sum(0).argmax() for j in range(len(self._first))])
        xx, xy = (
            torch.zeros(self._p, *of_clusters.shape[1:], dtype=of_clusters.dtype).index_add_(0, usual, of_clusters)
            for of_clusters in self.mixture.normal_equations
        )
        self._own[run] = xx, xy
        self._move(run, usual[self.mixture.cluster], assignment)
        return True

    def _move(self, run: int, before: Tensor, after: Tensor) -> None:
        """Move each client from the sums of its model ``before`` (m,) to those of its model ``after`` (m,)."""
        xx, xy = self._own[run]
        for model in range(self._p):
            joined, left = (after == model) & (before != model), (before == model) & (after != model)
            for sign, clients in ((1, joined), (-1, left)):
                if bool(clients.any()):
                    x, y = self.mixture.x[clients].flatten(0, 1), self.mixture.y[clients].flatten()
                    xx[model].addmm_(x.T, x, alpha=sign)
                    xy[model].addmv_(x.T, y, alpha=sign)
