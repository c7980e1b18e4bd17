"""Laplace noise in n dimensions, which each client adds to its update."""

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from shoal.core.errors import InputError, require
from shoal.core.randomness import Stream
from shoal.core.settings import NonNegativeFloat, PositiveFloat, settings
from shoal.defenses.defense import TrainingSetup


@settings
class LaplaceNoise:
    """Laplace noise with density ``c * exp(-epsilon * |x|)`` in R^n, added to a client's update of n parameters.

    The direction of the noise is uniform. The length of the noise has the distribution Gamma(n, 1 / epsilon), with mean
    n / epsilon and variance n / epsilon^2. For two updates at L2 distance d, the probabilities of any result differ by
    at most a factor of exp(epsilon * d) per round. Exactly one of two keys must be set:

    - ``noise_multiplier`` (nu in the paper) sets ``epsilon = n / (nu * |update|)``, so the noise is on average nu times
      as long as the update. The bound ``epsilon * |update| = n / nu`` (`leakage`) is too large to protect a network's
      update. The noise does not hide the length of the update.
    - ``epsilon`` is the same for all updates, so the factor exp(epsilon * d) applies to every pair of updates.

    Laplace noise gives no (epsilon, delta) guarantee for examples, and does not count towards a run's ``epsilon``. The
    cosine between the true and the sent update is about ``1 / sqrt(1 + nu^2)``. Networks with batch norm are refused,
    because noise could make variances negative.

    Args:
        noise_multiplier: the mean length nu of the noise relative to the length of the update; 0 adds no noise.
        epsilon: the epsilon of every update, per unit of L2 distance.

    Raises:
        InputError: both scales are set, or neither.

    Source: Galli et al. 2023, arXiv:2206.03396; noise in the plane: Andres et al. 2013, arXiv:1212.1984.

    Example:
        >>> import torch, shoal
        >>> starts, ends, seeds = torch.zeros(2, 1000), torch.ones(2, 1000), torch.tensor([0, 1])
        >>> sent = shoal.LaplaceNoise(noise_multiplier=1.0).filter(starts, ends, seeds)
        >>> torch.cosine_similarity(sent, ends).round(decimals=1)
        tensor([0.7000, 0.7000])
        >>> shoal.LaplaceNoise(noise_multiplier=0.0).filter(starts, ends, seeds).equal(ends)
        True
    """

    noise_multiplier: NonNegativeFloat | None = None
    epsilon: PositiveFloat | None = None
    name: ClassVar[str] = "laplace_noise"
    title: ClassVar[str] = "Laplace noise"

    def __post_init__(self) -> None:
        count = sum(scale is not None for scale in (self.noise_multiplier, self.epsilon))
        require(count == 1, f"Laplace noise needs exactly one of 'noise_multiplier' and 'epsilon' (got {count})")

    def leakage(self, parameters: int) -> float:
        """Return n / nu for n ``parameters``, which is epsilon times the length of an update in one round.

        Raises:
            InputError: ``noise_multiplier`` is 0 or not set.

        >>> LaplaceNoise(noise_multiplier=1.0).leakage(50_186)
        50186.0
        """
        if not self.noise_multiplier:
            raise InputError("'noise_multiplier' must be above 0 for a leakage")
        return parameters / self.noise_multiplier

    def filter(self, starts: Tensor, ends: Tensor, seeds: Tensor) -> Tensor:
        if self.noise_multiplier == 0:
            return ends
        parameters, lengths = ends.shape[1], (ends - starts).double().norm(dim=1).tolist()
        noisy = ends.clone()
        for row, seed, norm in zip(noisy, seeds.tolist(), lengths, strict=True):
            # A client whose update is 0 adds none: its epsilon would be infinite.
            mean = norm * (self.noise_multiplier or 0.0) if self.epsilon is None else parameters / self.epsilon
            row.add_(laplace_noise(parameters, mean, Stream(seed)("laplace noise")).to(row))
        return noisy

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """Return the setup in which clients add this noise.

        Raises:
            InputError: clients already filter their updates, or some parameters of the network are not trained.
        """
        require(
            setup.client_filter is None,
            "Laplace noise cannot be combined with another filter of clients' updates; remove one of the two",
        )
        layout = setup.model.layout
        require(
            layout.trainable == layout.size,
            "Laplace noise needs a network without batch norm or frozen layers "
            f"(got {layout.size - layout.trainable} untrained numbers)",
        )
        return replace(setup, client_filter=self)


def laplace_noise(parameters: int, mean: float, stream: Stream) -> Tensor:
    """Draw Laplace noise in R^n, n = ``parameters``, with mean norm ``mean``, as (n,) float32."""
    direction = torch.randn(parameters, generator=stream("direction").generator())
    radius = mean / parameters * float(stream("radius").numpy().gamma(parameters))
    # In float64, since the vector is long.
    return direction * (radius / float(direction.double().norm()))
