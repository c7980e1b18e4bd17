"""What a change of the knobs does to a measured figure, learned from the clusters while they train."""

from dataclasses import dataclass

import torch
from torch import Tensor

FORGETTING = 0.9
"""Weight of what was learned until the last estimate: what a knob does changes while a model learns."""


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """A Bayesian linear regression ``change = b . change of strengths + trend + noise`` with b ~ N(prior, s^2 I).

    All clusters of one estimate share the trend (training goes on in all of them), so it is taken out by subtracting
    the clusters' mean on both sides. A single cluster, or clusters whose strengths changed alike, teach nothing.

    Args:
        prior: (J,) float64, the effect of full strength of each of J knobs, as believed at the start.
        information: (J, J) float64, the sum of ``x x'`` over observations, in units of the noise's variance.
        evidence: (J,) float64, that of ``x (change - prior . x)``.
        ratio: the noise's standard deviation over s.
    """

    prior: Tensor
    information: Tensor
    evidence: Tensor
    ratio: float = 1.0

    def observed(self, strengths: Tensor, change: Tensor) -> "Sensitivity":
        """With one more estimate.

        Args:
            strengths: (K, J), by how much each cluster's strengths changed.
            change: (K,), by how much the figure changed; NaN where it is not known.
        """
        known = ~change.isnan()
        if int(known.sum()) < 2:
            return self
        x = strengths[known] - strengths[known].mean(dim=0)
        y = change[known] - change[known].mean()
        return Sensitivity(
            self.prior,
            FORGETTING * self.information + x.T @ x,
            FORGETTING * self.evidence + x.T @ (y - x @ self.prior),
            self.ratio,
        )

    def effect(self) -> Tensor:
        """(J,) the posterior mean of b."""
        count = len(self.prior)
        if count == 0:
            return self.prior
        ridge = self.information + self.ratio**2 * torch.eye(count, dtype=torch.float64)
        return self.prior + torch.linalg.solve(ridge, self.evidence)
