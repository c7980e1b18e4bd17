"""Convex-concave loss: a concave term keeps the losses of training examples apart.

Source: Liu et al. 2024, arXiv:2402.05453, with the exponential (CCEL) and the quadratic (CCQL) concave term.
"""

from dataclasses import field, replace
from typing import Annotated, Literal, Self

import torch
from torch import Tensor

from shoal.core.settings import Fraction, Internal, PositiveFloat, settings
from shoal.defenses.defense import (
    TrainingSetup,
    minimising,
    require_cross_entropy,
    require_strength,
    with_objective,
)
from shoal.engine import ClusterRound, LocalSGD
from shoal.engine.steps import Forward
from shoal.models.model import Loss


@settings
class CCL:
    """A step minimises the mean over a batch of ``beta * (alpha * CE - (1 - alpha) * g(p))``.

    CE is an example's cross-entropy and p = exp(-CE) the probability of its label; g is ``exp(p)`` (CCEL) or
    ``p + p^2 / 2`` (CCQL). As beta scales every gradient, a learning rate for plain cross-entropy is too small here. Of
    classification by cross-entropy, not with DP-SGD, and in the ``loop`` backend only.

    Args:
        variant: the concave term, ``ccel`` (exponential) or ``ccql`` (quadratic).
        alpha: weight of the cross-entropy, in [0, 1]; the concave term has the rest.
        beta: factor on the whole.
        strength: of a `scaled` defence, in [0, 1]: the weight of this loss; plain cross-entropy has the rest.

    Raises:
        InputError: a value outside its range.

    Source: Liu et al. 2024, arXiv:2402.05453, with the exponential (CCEL) and the quadratic (CCQL) concave term.

    Example:
        >>> import shoal
        >>> federation = shoal.Federation.from_tensors([([[-1.0], [1.0]], [0, 1])] * 3, test=([[2.0]], [1]))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> local = shoal.LocalSGD(steps=20, learning_rate=0.5)
        >>> for defenses in ([], [shoal.CCL().scaled(0.0)], [shoal.CCL()]):
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

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with this loss.

        Raises:
            InputError: the loss is not cross-entropy, or steps are private or minimise another objective.
        """
        require_cross_entropy("CCL", setup.model)
        return with_objective(setup, self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Local training by this loss, the same in every round."""
        del at
        return local if self.strength == 0 else minimising(local, self)

    def scaled(self, strength: float) -> Self:
        """With weight ``strength`` beside plain cross-entropy, which has the rest."""
        require_strength(strength)
        return replace(self, strength=strength * self.strength)

    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        """The mean of the loss above."""
        del generator, number
        plain = loss(forward(x), y)
        p = (-plain).exp()
        concave = p.exp() if self.variant == "ccel" else p + p.square() / 2
        changed = self.beta * (self.alpha * plain - (1 - self.alpha) * concave)
        return ((1 - self.strength) * plain + self.strength * changed).mean()
