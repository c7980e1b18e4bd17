"""Sums of X'X and X'y over the clients that chose a model, kept while choices stay as they are."""

import torch
from mixture import Mixture
from torch import Tensor

_PATIENCE = 5
"""Looks at a run that must find the same choices before sums are made for it: they cost as much as many rounds."""

_CHANGED = 50
"""Sums are corrected where at most 1 in so many clients changed, and else given up."""


class Sums:
    """The sums of each of ``runs`` runs of ``p`` models.

    A run in which the clients of each true cluster all choose one model uses the sums of the clusters
    (`Mixture.normal`); another gets its own, made from those.

    Attributes:
        ready: (runs,) bool, whether a run's sums are those of its last choices.
    """

    def __init__(self, mixture: Mixture, runs: int, p: int) -> None:
        self.mixture = mixture
        self.ready = torch.zeros(runs, dtype=torch.bool)
        self._first = torch.stack([(mixture.cluster == j).nonzero()[0, 0] for j in range(len(mixture.truth))])
        self._choice = torch.full((runs, len(mixture.cluster)), -1)
        self._same = [0] * runs
        self._own: dict[int, tuple[Tensor, Tensor]] = {}
        self._p = p

    def note(self, runs: Tensor, choices: Tensor) -> None:
        """New choices (m, a) of ``runs`` (a,)."""
        for run, assignment in zip(runs.tolist(), choices.T, strict=True):
            changed = int((assignment != self._choice[run]).sum())
            self._same[run] = 0 if changed else self._same[run] + 1
            if bool((assignment == assignment[self._first][self.mixture.cluster]).all()):
                self._own.pop(run, None)
                self.ready[run] = True
            else:
                self.ready[run] = self._owned(run, assignment, changed)
            self._choice[run] = assignment

    def gradient(self, runs: Tensor, now: Tensor) -> Tensor:
        """As `descent.fresh`, of ``runs`` (a,) at models ``now`` (a, p, d)."""
        m, n, _ = self.mixture.x.shape
        gradient = torch.zeros_like(now)
        mine = torch.tensor([run in self._own for run in runs.tolist()])
        for place in torch.nonzero(mine).flatten().tolist():
            xx, xy = self._own[int(runs[place])]
            gradient[place] = torch.bmm(xx, now[place][:, :, None])[:, :, 0] - xy
        whole = torch.nonzero(~mine).flatten()
        model_of = self._choice[runs[whole]][:, self._first]
        for xx, xy, model in zip(*self.mixture.normal, model_of.T, strict=True):
            gradient[whole, model] += now[whole, model] @ xx - xy
        return (2 / (m * n)) * gradient

    def _owned(self, run: int, assignment: Tensor, changed: int) -> bool:
        """Bring the run's own sums up to ``choice``; False where it has none and does not deserve any yet."""
        if run in self._own:
            if changed * _CHANGED <= len(assignment):
                self._shift(run, self._choice[run], assignment)
                return True
            del self._own[run]
            return False
        if self._same[run] < _PATIENCE:
            return False
        votes = torch.nn.functional.one_hot(assignment, self._p)
        usual = torch.stack([votes[self.mixture.cluster == j].sum(0).argmax() for j in range(len(self._first))])
        xx, xy = (
            torch.zeros(self._p, *part.shape[1:], dtype=part.dtype).index_add_(0, usual, part)
            for part in self.mixture.normal
        )
        self._own[run] = xx, xy
        self._shift(run, usual[self.mixture.cluster], assignment)
        return True

    def _shift(self, run: int, before: Tensor, after: Tensor) -> None:
        """Move the clients whose choice is ``after`` (m,) and was ``before`` (m,) from sum to sum."""
        xx, xy = self._own[run]
        for model in range(self._p):
            for sign, mine in ((1, (after == model) & (before != model)), (-1, (before == model) & (after != model))):
                if bool(mine.any()):
                    x, y = self.mixture.x[mine].flatten(0, 1), self.mixture.y[mine].flatten()
                    xx[model].addmm_(x.T, x, alpha=sign)
                    xy[model].addmv_(x.T, y, alpha=sign)
