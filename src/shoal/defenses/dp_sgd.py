"""DP-SGD at the client: each example's gradient is clipped, noise is added, and a client says how much it spent.

Source: Abadi et al. 2016, arXiv:1607.00133, Algorithm 1; at the clients as in Kim et al., RAID 2023, section 5.2.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from shoal.core.errors import require
from shoal.defenses.defense import TrainingSetup
from shoal.engine import ClusterRound, LocalSGD, require_per_example_gradients

Accountant = Literal["rdp", "prv"]
Sampling = Literal["shuffled", "poisson"]


@dataclass(frozen=True)
class DPSGD:
    """Differentially private local steps.

    A step adds up its examples' gradients, each cut to an L2 norm of C = ``max_grad_norm``, adds noise
    N(0, (sigma C)^2) to every coordinate, and divides by the batch size. With neither clipping nor noise, and shuffled
    batches, it is the plain step, bit for bit.

    Args:
        max_grad_norm: C; may be infinite where there is no noise.
        noise_multiplier: sigma; 0: no noise, and no guarantee.
        delta: of the (epsilon, delta) that is reported.
        accountant: how epsilon is found: "rdp" (Renyi) or "prv" (tighter and slower).
        sampling: "shuffled": batches as plain SGD takes them, for which epsilon is an approximation; "poisson": each
            example is in a step by a coin of its own, as the accountants assume, and a step divides by the expected
            batch size.

    Raises:
        InputError: a value outside its range, or noise without clipping.
    """

    max_grad_norm: float = 1.0
    noise_multiplier: float = 0.0
    delta: float = 1e-5
    accountant: Accountant = "rdp"
    sampling: Sampling = "shuffled"

    def __post_init__(self) -> None:
        require(self.max_grad_norm > 0, f"'defenses.dp_sgd.max_grad_norm' must be above 0; got {self.max_grad_norm:g}")
        require(
            0 <= self.noise_multiplier < math.inf,
            f"'defenses.dp_sgd.noise_multiplier' must be at least 0 and finite; got {self.noise_multiplier:g}",
        )
        require(
            self.noise_multiplier == 0 or self.max_grad_norm < math.inf,
            f"noise needs clipping: 'defenses.dp_sgd.noise_multiplier' is {self.noise_multiplier:g}, so "
            "'defenses.dp_sgd.max_grad_norm' must be finite",
        )
        require(0 < self.delta < 1, f"'defenses.dp_sgd.delta' must be above 0 and below 1; got {self.delta:g}")
        for name, known in (("accountant", ("rdp", "prv")), ("sampling", ("shuffled", "poisson"))):
            value = getattr(self, name)
            require(value in known, f"'defenses.dp_sgd.{name}' must be {known[0]!r} or {known[1]!r}; got {value!r}")

    @property
    def poisson(self) -> bool:
        """Whether a step takes each example by a coin of its own."""
        return self.sampling == "poisson"

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with private local steps.

        Raises:
            InputError: the network has batch norm, or local steps are private already.
        """
        private = setup.local.gradient_privacy is not None or any(isinstance(each, DPSGD) for each in setup.defenses)
        require(not private, "DP-SGD is given, but local training is private already")
        if replace(setup.local, gradient_privacy=self).private:
            require_per_example_gradients(setup.model.network())
        return replace(setup, defenses=(*setup.defenses, self))

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        """Private local steps, the same in every round."""
        del at
        return replace(local, gradient_privacy=self)
