"""n-dimensional Laplace noise of each client on its update."""

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
    """Noise with density ``c * exp(-epsilon * |x|)``, x in R^n, on the n parameters that a client sends.

    Its direction is uniform, and its length is Gamma(n, 1 / epsilon): mean n / epsilon and variance n / epsilon^2. Two
    updates at L2 distance d give any result with probabilities within a factor of exp(epsilon * d), for one round;
    rounds add up. Give one of two scales:

    - ``noise_multiplier`` (the paper's): nu, with ``epsilon = n / (nu * |update|)``, so the noise is on average nu
      times as long as the update. Then ``epsilon * |update|`` is n / nu (`leakage`), a vacuous bound for a network:
      50,186 at nu = 1. The noise does not hide the update's length: in high dimension the sent update has length
      ``|update| * sqrt(1 + nu^2)`` almost exactly.
    - ``epsilon``: the same for all updates, in 1 / (unit of L2 distance); a guarantee for all pairs of updates.

    Neither is an (epsilon, delta) of examples, so a run does not report it as ``epsilon``. The sent update has cosine
    ``1 / sqrt(1 + nu^2)`` with the true one, and the mean over m clients with similar updates
    ``1 / sqrt(1 + nu^2 / m)``: signal outweighs noise for ``nu < sqrt(m)``. Malicious clients add none. Recorded
    updates include the noise. Batch norm is refused, since noise would make its variances negative.

    Args:
        noise_multiplier: nu, the mean length of the noise in lengths of the update; 0: no noise.
        epsilon: every update's epsilon, in 1 / (unit of L2 distance).

    Raises:
        InputError: both scales, or neither.

    Source: Galli, Biswas, Jung, Cucinotta, Palamidessi 2023, arXiv:2206.03396 (d-privacy of updates in R^n); the noise
    of d-privacy in the plane: Andres, Bordenabe, Chatzikokolakis, Palamidessi 2013, arXiv:1212.1984.

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
        require(count == 1, f"Laplace noise takes either 'noise_multiplier' or 'epsilon'; got {count} of them")

    def leakage(self, parameters: int) -> float:
        """Return n / nu for n ``parameters``: epsilon times the length of an update, in one round.

        Raises:
            InputError: 'noise_multiplier' is 0 or missing.

        >>> LaplaceNoise(noise_multiplier=1.0).leakage(50_186)
        50186.0
        """
        if not self.noise_multiplier:
            raise InputError("a leakage for every update needs a 'noise_multiplier' above 0")
        return parameters / self.noise_multiplier

    def filter(self, starts: Tensor, ends: Tensor, seeds: Tensor) -> Tensor:
        """Add noise to each of the ends (u, n), from the client's own stream of the round."""
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
            InputError: clients change their updates already, or the network has parameters that are not trained.
        """
        require(setup.client_filter is None, "Laplace noise is added, but clients change their updates already")
        layout = setup.model.layout
        require(
            layout.trainable == layout.size,
            "Laplace noise needs a network whose parameters are all trained, without batch norm; "
            f"{layout.size - layout.trainable} of this one's numbers are not",
        )
        return replace(setup, client_filter=self)


def laplace_noise(parameters: int, mean: float, stream: Stream) -> Tensor:
    """Draw n-dimensional Laplace noise (n,) float32, n = ``parameters``, of mean length ``mean`` = n / epsilon."""
    direction = torch.randn(parameters, generator=stream("direction").generator())
    radius = mean / parameters * float(stream("radius").numpy().gamma(parameters))
    # In float64, since the vector is long.
    return direction * (radius / float(direction.double().norm()))
