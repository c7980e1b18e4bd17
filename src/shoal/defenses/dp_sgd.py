"""DP-SGD at the clients: each example's gradient is clipped, and noise is added."""

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from shoal.core.errors import require
from shoal.core.settings import Explicit, NonNegativeFloat, OpenFraction, settings
from shoal.defenses.defense import TrainingSetup, require_strength
from shoal.engine import ClusterRound, LocalSGD, require_per_example_gradients
from shoal.engine.local_sgd import PRIVATE_OBJECTIVE

Accountant = Literal["rdp", "prv"]
Sampling = Literal["shuffled", "poisson"]


@settings
class DPSGD:
    """Differentially private local steps: the sum over a batch of clipped gradients, plus noise.

    A step is ``theta <- theta - learning_rate / B * (sum_i g_i * min(1, C / |g_i|) + N(0, (sigma * C)^2 I))``, where B
    is the nominal batch size, also for a pass's last batch, which may be shorter, and for a Poisson subsample. Without
    clipping and noise, and with shuffled batches, it is the plain step, bit for bit. Not with batch norm (the VGGs have
    ``group`` norm), and in the ``loop`` backend only.

    The epsilon that is stated is of one record, over all local trainings of its client, towards whoever sees all that
    the client sends and all models in use; it does not cover which model a client chooses.

    Args:
        max_grad_norm: C, the bound on the L2 norm of each example's gradient; ``inf``: no clipping, allowed without
            noise only.
        noise_multiplier: sigma, the standard deviation of the noise in units of C; 0: no noise, and no guarantee.
        delta: of the (epsilon, delta) that is reported.
        accountant: of epsilon: ``rdp`` (Renyi, at Opacus' default orders), or ``prv`` (tighter, slower, and refused
            where it would take gigabytes of memory).
        sampling: ``shuffled``: batches as plain SGD takes them, for which epsilon is an approximation; ``poisson``:
            Poisson subsampling, as the accountants assume.

    Raises:
        InputError: a value outside its range, or noise without clipping.

    Source: Abadi et al. 2016, arXiv:1607.00133, Algorithm 1; at the clients as in Kim et al., RAID 2023, section 5.2.

    Example:
        >>> import shoal.toy
        >>> federation, model, local = shoal.toy.one_group()
        >>> for noise in (1.0, 4.0):
        ...     defenses = [shoal.DPSGD(max_grad_norm=1.0, noise_multiplier=noise)]
        ...     result = shoal.simulate(federation, model, shoal.FedAvg(), local, rounds=3, defenses=defenses)
        ...     print(noise, round(result.summary.overall["epsilon"], 1))
        ...
        1.0 65.4
        4.0 10.3
    """

    max_grad_norm: Annotated[float, Field(gt=0, strict=True)] = 1.0
    noise_multiplier: Annotated[NonNegativeFloat, Explicit()] = 0.0
    delta: OpenFraction = 1e-5
    accountant: Accountant = "rdp"
    sampling: Sampling = "shuffled"
    name: ClassVar[str] = "dp_sgd"
    title: ClassVar[str] = "DP-SGD"

    def __post_init__(self) -> None:
        require(
            self.noise_multiplier == 0 or self.max_grad_norm < math.inf,
            f"noise needs clipping: 'noise_multiplier' is {self.noise_multiplier:g}, so 'max_grad_norm' must be finite",
        )

    @property
    def poisson(self) -> bool:
        """Whether batches are Poisson subsamples instead of parts of shuffled passes."""
        return self.sampling == "poisson"

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with private local steps.

        Raises:
            InputError: the network has batch norm, local steps are private already, or they minimise another objective.
        """
        private = setup.local.gradient_privacy is not None or any(
            isinstance(defense, DPSGD) for defense in setup.defenses
        )
        require(not private, "DP-SGD is applied, but local training is private already")
        if replace(setup.local, gradient_privacy=self).private:
            require(setup.first_local().objective is None, PRIVATE_OBJECTIVE)
            require_per_example_gradients(setup.model.network())
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Private local steps, the same in every round."""
        return replace(local, gradient_privacy=self)

    def scaled(self, strength: float) -> Self:
        """With ``strength`` times the noise multiplier.

        At any strength above 0 each example's gradient is clipped to C and batches are sampled as they are at 1. At 0
        nothing is clipped, no noise is added, and batches are shuffled: plain steps, bit for bit.
        """
        require_strength(strength)
        if strength == 0:
            return replace(self, max_grad_norm=math.inf, noise_multiplier=0.0, sampling="shuffled")
        return replace(self, noise_multiplier=strength * self.noise_multiplier)
