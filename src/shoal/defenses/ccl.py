"""Convex-concave loss: a concave term keeps the losses of training examples apart."""

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
    """The loss ``beta * (alpha * CE - (1 - alpha) * g(p))``, averaged over a batch.

    CE is an example's cross-entropy and p = exp(-CE) the probability of its label; g is ``exp(p)`` (CCEL) or
    ``p + p^2 / 2`` (CCQL). Since beta scales every gradient, a learning rate for plain cross-entropy is too small. CCL
    needs classification by cross-entropy, without DP-SGD, and the ``loop`` backend.

    Args:
        variant: the concave term, ``ccel`` (exponential) or ``ccql`` (quadratic).
        alpha: weight of the cross-entropy, in [0, 1]; the concave term has the rest.
        beta: factor on the whole.
        strength: the weight of this loss in [0, 1], set by `with_strength`; plain cross-entropy has the rest.

    Source: Liu et al. 2024, arXiv:2402.05453, with the exponential (CCEL) and the quadratic (CCQL) concave term.

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
        """Return the mean of the class's loss."""
        plain = loss(forward(x), y)
        p = (-plain).exp()
        concave = p.exp() if self.variant == "ccel" else p + p.square() / 2
        changed = self.beta * (self.alpha * plain - (1 - self.alpha) * concave)
        return ((1 - self.strength) * plain + self.strength * changed).mean()
