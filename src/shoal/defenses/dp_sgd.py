"""DP-SGD at the clients, with noise per client or in the sum over clients."""

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
    """One client's noise in a sum over clients; implements `shoal.engine.local_sgd.GradientPrivacy`."""

    rule: "DPSGD"

    @property
    def max_grad_norm(self) -> float:
        return self.rule.max_grad_norm

    @property
    def noise_multiplier(self) -> float:
        """The standard deviation of one client's noise, sigma / sqrt(``min_clients``), in units of C."""
        return self.rule.noise_multiplier / math.sqrt(self.rule.min_clients or 1)

    @property
    def poisson(self) -> bool:
        return False


@settings
class DPSGD:
    """DP-SGD: local steps that clip each example's gradient and add noise to the sum over a batch.

    A step is ``theta <- theta - learning_rate / B * (sum_i g_i * min(1, C / |g_i|) + N(0, (sigma * C)^2 I))``. B is the
    nominal batch size, also for a shorter last batch and for Poisson subsamples. A gradient without a finite norm
    counts as zero. DP-SGD refuses networks with batch norm.

    The reported epsilon protects one record of a client, including all copies of the record. The epsilon covers all
    local training of the client, against an attacker who sees all models and all messages of the client. The epsilon
    covers the client's choice of a cluster only if the choice is private, as in `PrivateMeans`.

    With ``noise = "sum"``, each client adds noise with variance (sigma C)^2 / ``min_clients``, so the sum over
    ``min_clients`` clients has noise multiplier sigma. Training with ``noise = "sum"`` has one local step per round on
    all examples, and does not update models with fewer than ``min_clients`` clients. Each view (outsider, client,
    server) then has a separate epsilon, and the figure ``epsilon`` refers to the client. `FineTuning`, `NormClipping`
    and `LaplaceNoise` are not allowed with ``noise = "sum"``.

    Args:
        max_grad_norm: the bound C on the L2 norm of each example's gradient, at least 1e-6. ``inf`` disables clipping,
            and is allowed only without noise.
        noise_multiplier: the standard deviation sigma of the noise, in units of the clipping norm; 0 adds no noise and
            gives no guarantee.
        delta: the delta of the reported guarantee.
        accountant: the method of privacy accounting: ``rdp`` (Renyi, with Opacus' default orders) or ``prv`` (tighter
            and slower).
        sampling: how batches are sampled: ``shuffled`` (as in plain SGD, with an approximate epsilon) or ``poisson``
            (as the accountants assume).
        noise: where noise is added: at each ``client``, or to the ``sum`` over a model's clients.
        min_clients: the smallest number of clients in a sum; required with ``noise = "sum"``.

    Raises:
        InputError: a value is outside its allowed range, or noise is set without clipping.

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
            f"'max_grad_norm' must be finite with noise (got noise_multiplier = {self.noise_multiplier:g})",
        )
        in_sum = self.noise == "sum"
        require(in_sum or self.min_clients is None, "'min_clients' needs noise = 'sum'; remove 'min_clients'")
        require(not in_sum or self.min_clients is not None, "'min_clients' is missing; noise = 'sum' needs this key")
        require(
            not in_sum or not self.poisson,
            "'sampling' must be 'shuffled' with noise = 'sum' (got 'poisson')",
        )

    @property
    def poisson(self) -> bool:
        return self.sampling == "poisson"

    def apply(self, setup: TrainingSetup) -> TrainingSetup:
        """Return the setup with private local steps.

        Raises:
            InputError: the network has batch norm, or local steps are already private or have another objective.
        """
        private = setup.local.gradient_privacy is not None or any(
            isinstance(defense, DPSGD) for defense in setup.defenses
        )
        require(not private, "'dp_sgd' must not be applied twice; keep one")
        if replace(setup.local, gradient_privacy=self).private:
            require(setup.first_local().objective is None, PRIVATE_OBJECTIVE)
            require_per_example_gradients(setup.model.structure())
        if self.noise == "sum":
            local = setup.first_local()
            steps = local.epochs if local.steps is None else local.steps
            plain = local.momentum == 0 and local.optimizer is None and local.clip_norm is None
            require(
                local.batch_size == "all" and steps == 1 and plain,
                "noise = 'sum' needs one plain step per round; set local.batch_size = 'all' and local.steps = 1, and "
                "remove momentum, clip_norm and optimizer",
            )
        return setup.with_local_defense(self)

    def local(self, local: LocalSGD, at: ClusterRound) -> LocalSGD:
        return replace(local, gradient_privacy=NoiseShare(self) if self.noise == "sum" else self)

    def adjust_plan(self, plan: RoundPlan, sizes: Tensor) -> RoundPlan:
        """Remove models with fewer than ``min_clients`` clients from a round's plan.

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
        require(simple, f"noise = 'sum' needs an algorithm in which each client sends one update, {algorithms}")
        (training,) = shared
        assert training.weights is not None
        per_example = training.weights / sizes
        largest = per_example.amax(dim=1, keepdim=True)
        equal = torch.where(per_example > 0, (per_example - largest).abs() <= 1e-9 * largest, True)
        require(
            bool(equal.all()), f"noise = 'sum' needs an algorithm that weights clients by their examples, {algorithms}"
        )
        enough = (training.weights > 0).sum(dim=1) >= (self.min_clients or 1)
        return replace(plan, trainings=(replace(training, weights=training.weights * enough[:, None]),))

    def with_strength(self, strength: float) -> Self:
        """Return the defence with ``strength`` times the noise multiplier.

        A strength above 0 does not change clipping and sampling. At strength 0, local steps equal those of plain SGD
        bit for bit.
        """
        require_strength(strength)
        if strength == 0:
            return replace(self, max_grad_norm=math.inf, noise_multiplier=0.0, sampling="shuffled")
        return replace(self, noise_multiplier=strength * self.noise_multiplier)
