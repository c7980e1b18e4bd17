"""Convex-concave loss: cross-entropy minus a concave term of the label's probability."""

from dataclasses import field
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from shoal.core.settings import Fraction, Internal, PositiveFloat, settings
from shoal.defenses.defense import LossDefense
from shoal.engine.local_sgd import Forward
from shoal.models.model import Loss


@settings
class CCL(LossDefense):
    """The convex-concave loss ``beta * (alpha * CE - (1 - alpha) * g(p))``, averaged over a batch.

    CE is the cross-entropy of an example, and ``p = exp(-CE)`` is the predicted probability of the label. The concave
    term ``g(p)`` is ``exp(p)`` (CCEL) or ``p + p^2 / 2`` (CCQL). The factor beta scales every gradient, so CCL needs a
    larger learning rate than plain cross-entropy. CCL requires classification by cross-entropy and the ``loop``
    backend, and excludes DP-SGD.

    Args:
        variant: the concave term of the loss: ``ccel`` (exponential) or ``ccql`` (quadratic).
        alpha: the weight of the cross-entropy, in [0, 1]; the concave term has the weight 1 - alpha.
        beta: the factor beta on the whole loss.
        strength: the weight of this loss in [0, 1], set by `with_strength`; plain cross-entropy has the remaining
            weight.

    Source: Liu et al. 2024, arXiv:2402.05453.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> for defenses in ([], [shoal.CCL().with_strength(0.0)], [shoal.CCL()]):
        ...     result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=3, defenses=defenses)
        ...     print(f"{result.clients['loss'].mean():.2f}")
        ...
        0.02
        0.02
        0.23
    """

    variant: Literal["ccel", "ccql"] = "ccel"
    alpha: Fraction = 0.5
    beta: PositiveFloat = 0.05
    strength: Annotated[Fraction, Internal()] = field(default=1.0, kw_only=True)
    name: ClassVar[str] = "ccl"
    title: ClassVar[str] = "Convex-concave loss"
    of_cross_entropy: ClassVar[bool] = True

    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        plain = loss(forward(x), y)
        p = (-plain).exp()
        concave = p.exp() if self.variant == "ccel" else p + p.square() / 2
        changed = self.beta * (self.alpha * plain - (1 - self.alpha) * concave)
        return ((1 - self.strength) * plain + self.strength * changed).mean()
