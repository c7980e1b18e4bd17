"""Mixup: clients train on mixtures of two examples."""

from dataclasses import field
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import require
from shoal.core.settings import Fraction, Internal, NonNegativeFloat, settings
from shoal.data.shards import gather
from shoal.defenses.defense import LossDefense, TrainingSetup
from shoal.engine.local_sgd import Forward
from shoal.models.model import Loss


@settings
class Mixup(LossDefense):
    """The loss ``lambda * loss(f(z), y) + (1 - lambda) * loss(f(z), v)`` at ``z = lambda x + (1 - lambda) u``.

    (x, y) are a batch's examples, and (u, v) are the same examples in random order. The weight lambda is drawn from
    Beta(alpha, alpha) for each batch. Mixup refuses texts and DP-SGD, and needs the ``loop`` backend.

    Args:
        alpha: the parameter alpha of mixup, whose weight is drawn from Beta(alpha, alpha); 0 disables mixup.
        strength: the strength in [0, 1], set by `with_strength`. A strength s changes lambda to ``1 - s * (1 -
            lambda)``.

    Source: Zhang et al. 2018, arXiv:1710.09412.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> plain = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2)
        >>> for alpha in (0.0, 1.0):
        ...     defenses = [shoal.Mixup(alpha)]
        ...     result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=2, defenses=defenses)
        ...     print(alpha, result.state.models.equal(plain.state.models))
        ...
        0.0 True
        1.0 False
    """

    alpha: Annotated[NonNegativeFloat, Field(alias="mixup")]
    strength: Annotated[Fraction, Internal()] = field(default=1.0, kw_only=True)
    name: ClassVar[str] = "mixup"
    title: ClassVar[str] = "Mixup"

    @property
    def is_off(self) -> bool:
        return self.alpha == 0 or self.strength == 0

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """Return the setup with mixup.

        Raises:
            InputError: the examples are texts, or local steps are private or have another objective.
        """
        require(setup.kind != "texts", "'mixup' needs numeric inputs (got texts); remove 'mixup'")
        return super().apply(setup)

    def objective(
        self, forward: Forward, x: Tensor, y: Tensor, loss: Loss, generator: torch.Generator, number: int
    ) -> Tensor:
        require(x.is_floating_point(), "'mixup' needs numeric inputs (got texts); remove 'mixup'")
        order = torch.randperm(len(y), generator=generator).to(y.device)
        # PyTorch cannot draw a beta distribution from a given generator.
        seed = int(torch.randint(2**62, (1,), generator=generator))
        weight = 1 - self.strength * (1 - float(np.random.default_rng(seed).beta(self.alpha, self.alpha)))
        outputs = forward(torch.lerp(gather(x, order), x, weight))
        return weight * loss(outputs, y).mean() + (1 - weight) * loss(outputs, y[order]).mean()
