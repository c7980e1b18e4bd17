"""DP-SGD at the clients: clipped gradients with noise, per client or in the sum over clients."""

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from shoal.core.errors import require
from shoal.core.settings import Explicit, NonNegativeFloat, OpenFraction, Positive, settings
from shoal.defenses.defense import TrainingSetup, require_strength
from shoal.engine import ClusterRound, LocalSGD, RoundPlan, require_per_example_gradients
from shoal.engine.local_sgd import PRIVATE_OBJECTIVE

Accountant = Literal["rdp", "prv"]
Sampling = Literal["shuffled", "poisson"]


@dataclass(frozen=True)
class NoiseShare:
    """One client's share of the noise in a sum; implements `shoal.engine.local_sgd.GradientPrivacy`."""

    rule: "DPSGD"

    @property
    def max_grad_norm(self) -> float:
        """C."""
        return self.rule.max_grad_norm

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of this client's noise, in units of C: sigma / sqrt(``min_clients``)."""
        return self.rule.noise_multiplier / math.sqrt(self.rule.min_clients or 1)

    @property
    def poisson(self) -> bool:
        """Whether batches are Poisson subsamples; here every step is on all examples."""
        return False


@settings
class DPSGD:
    """Differentially private local steps: the sum over a batch of clipped gradients, plus noise.

    A step is ``theta <- theta - learning_rate / B * (sum_i g_i * min(1, C / |g_i|) + N(0, (sigma * C)^2 I))``, with B
    the nominal batch size, even for a shorter last batch and a Poisson subsample. Without clipping and noise, and with
    shuffled batches, it is the plain step, bit for bit. A gradient without a finite norm counts as zero, so no record
    can make training fail. Batch norm is refused (the VGGs have ``group`` norm).

    The reported epsilon is of one record with its copies (`accounting.of_copies`), over all local trainings of its
    client, for an attacker who sees everything that the client sends and all models. It covers the choice of a cluster
    only if that is private, as in `PrivateMeans`.

    ``noise = "sum"``: each client adds N(0, (sigma C)^2 / m), m = ``min_clients``, so the sum over m or more clients
    has the noise sigma. It needs one local step on all examples per round, and the server does not move a model that
    fewer than m clients trained. Then epsilons are by view (`accounting.epsilons_by_view`): "outsider" sees the models
    of all rounds; "client" also knows its own share of the noise; "server" sees each client's update, or with a secure
    sum only the sums. ``epsilon`` is the client's. Training after the last round (`FineTuning`), `NormClipping` and
    `LaplaceNoise` are refused.

    Args:
        max_grad_norm: C, the bound on the L2 norm of each example's gradient, at least 1e-6 for squares in float32;
            ``inf``: no clipping, only without noise.
        noise_multiplier: sigma, the standard deviation of the noise in units of C; 0: no noise, and no guarantee.
        delta: the delta of the reported (epsilon, delta).
        accountant: ``rdp`` (Renyi, at Opacus' default orders), or ``prv`` (tighter, slower, and refused if it would
            take gigabytes of memory).
        noise: sigma is the noise of each ``client``, or of the ``sum`` over a model's clients.
        min_clients: m, the fewest clients of such a sum.
        sampling: ``shuffled``: batches of plain SGD, with an approximate epsilon; ``poisson``: Poisson subsampling, as
            the accountants assume.

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

    max_grad_norm: Annotated[float, Field(ge=1e-6, strict=True)] = 1.0
    noise_multiplier: Annotated[NonNegativeFloat, Explicit()] = 0.0
    delta: OpenFraction = 1e-5
    accountant: Accountant = "rdp"
    sampling: Sampling = "shuffled"
    noise: Literal["client", "sum"] = "client"
    min_clients: Positive | None = None
    name: ClassVar[str] = "dp_sgd"
    title: ClassVar[str] = "DP-SGD"

    def __post_init__(self) -> None:
        require(
            self.noise_multiplier == 0 or self.max_grad_norm < math.inf,
            f"noise needs clipping: 'noise_multiplier' is {self.noise_multiplier:g}, so 'max_grad_norm' must be finite",
        )
        in_sum = self.noise == "sum"
        require(in_sum or self.min_clients is None, "'min_clients' is of noise = 'sum'; leave it out")
        require(not in_sum or self.min_clients is not None, "'min_clients' is missing: the fewest clients of a sum")
        require(
            not in_sum or not self.poisson,
            "noise = 'sum' takes all examples in every step, so 'sampling' must be 'shuffled'; got 'poisson'",
        )

    @property
    def poisson(self) -> bool:
        """Whether batches are Poisson subsamples instead of parts of shuffled passes."""
        return self.sampling == "poisson"

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """Return the setup with private local steps.

        Raises:
            InputError: the network has batch norm, local steps are private already, or they minimise another objective.
        """
        private = setup.local.gradient_privacy is not None or any(
            isinstance(defense, DPSGD) for defense in setup.defenses
        )
        require(not private, "DP-SGD is applied, but local training is private already")
        if replace(setup.local, gradient_privacy=self).private:
            require(setup.first_local().objective is None, PRIVATE_OBJECTIVE)
            require_per_example_gradients(setup.model.structure())
        if self.noise == "sum":
            local = setup.first_local()
            steps = local.epochs if local.steps is None else local.steps
            plain = local.momentum == 0 and local.optimizer is None and local.clip_norm is None
            require(
                local.batch_size == "all" and steps == 1 and plain,
                "noise = 'sum' needs one plain step on all examples a round: local.batch_size = 'all' and "
                "local.steps = 1, without momentum, clip_norm and optimizer",
            )
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        return replace(local, gradient_privacy=NoiseShare(self) if self.noise == "sum" else self)

    def adjust_plan(self, plan: RoundPlan, sizes: Tensor) -> RoundPlan:
        """Leave models that fewer than ``min_clients`` clients train out of a round's plan.

        Args:
            plan: the plan of n clients.
            sizes: (n,) int64, their numbers of examples.

        Raises:
            InputError: updates are not sums of clipped gradients with equal weights.
        """
        if self.noise == "client":
            return plan
        algorithms = "such as FedAvg, IFCA with weighting = 'examples', or PrivateMeans"
        shared = [training for training in plan.trainings if training.weights is not None]
        simple = len(shared) == len(plan.trainings) == 1 and all(
            getattr(shared[0], name) in (None, ())
            for name in ("keep", "linear_term", "local", "example_weights", "phases", "shared", "step_rule")
        )
        require(simple, f"noise = 'sum' needs clients that send one update, which is averaged, {algorithms}")
        (training,) = shared
        assert training.weights is not None
        per_example = training.weights / sizes
        largest = per_example.amax(dim=1, keepdim=True)
        equal = torch.where(per_example > 0, (per_example - largest).abs() <= 1e-9 * largest, True)
        require(bool(equal.all()), f"noise = 'sum' needs clients that weigh by their examples, {algorithms}")
        enough = (training.weights > 0).sum(dim=1) >= (self.min_clients or 1)
        return replace(plan, trainings=(replace(training, weights=training.weights * enough[:, None]),))

    def with_strength(self, strength: float) -> Self:
        """Multiply the noise multiplier by ``strength``.

        At any strength above 0 clipping and sampling are those of strength 1; at 0 steps are plain, bit for bit.
        """
        require_strength(strength)
        if strength == 0:
            return replace(self, max_grad_norm=math.inf, noise_multiplier=0.0, sampling="shuffled")
        return replace(self, noise_multiplier=strength * self.noise_multiplier)
