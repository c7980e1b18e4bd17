"""The tables [defenses], with fixed strengths, and [coordinator], with strengths that a coordinator sets."""

from dataclasses import field, replace
from typing import Annotated, Any

from shoal.algorithms import Pooling, PricedChoice
from shoal.control import Knob, LimitController
from shoal.core.errors import require
from shoal.core.settings import Fraction, Inline, PositiveFloat, settings
from shoal.defenses import (
    CCL,
    DEFENSES,
    DPSGD,
    L2,
    Augmentation,
    Defense,
    Dropout,
    Flooding,
    LaplaceNoise,
    Mixup,
    NormClipping,
    RelaxLoss,
    ShorterTraining,
)
from shoal.engine import Algorithm, ScalableDefense

PRIOR_EFFECTS = {
    "augmentation": (0.04, 0.025),
    "pooling": (0.01, 0.003),
    "l2": (0.01, 0.002),
    "relaxloss": (0.02, 0.020),
    "flooding": (0.02, 0.020),
    "shorter_training": (0.03, 0.040),
    "mixup": (0.005, 0.010),
    "ccl": (0.005, 0.015),
    "dp_sgd": (0.05, 0.090),
}
"""The prior means of each defence's risk reduction and accuracy cost at full strength."""


@settings
class SteerableDefenses:
    """The shipped defences that a coordinator can steer, and a user's own defences.

    The defences ``mixup``, ``flooding``, ``relaxloss``, ``ccl`` and ``dp_sgd`` exclude each other.

    Args:
        augmentation: random transformations of training images; an empty table uses the default values.
        l2: an L2 penalty on the parameters.
        relaxloss: RelaxLoss, which keeps the training loss near a target level.
        flooding: a level of the training loss below which training raises the loss.
        shorter_training: fewer local steps per round.
        mixup: training on convex combinations of two examples.
        ccl: the convex-concave loss; an empty table uses the default values.
        dp_sgd: DP-SGD: clipping of each example's gradient, and noise; see [differential
            privacy](#differential-privacy). If a coordinator sets the noise, no epsilon is computed.
        custom: your own defences, one table ``custom.NAME`` each, with ``name = "module:Name"`` and the class's keys. A
            coordinator can steer only defences with the method ``with_strength``; see [your
            own](adding.md#steered-by-a-coordinator).
    """

    augmentation: Augmentation | None = None
    l2: Annotated[L2 | None, Inline()] = None
    relaxloss: RelaxLoss | None = None
    flooding: Annotated[Flooding | None, Inline()] = None
    shorter_training: Annotated[ShorterTraining | None, Inline()] = None
    mixup: Annotated[Mixup | None, Inline()] = None
    ccl: CCL | None = None
    dp_sgd: DPSGD | None = None
    custom: dict[str, Defense] | None = None


@settings
class DefensesSection(SteerableDefenses):
    """The defences of clients and server; a defence is applied only if its key or table is set.

    Args:
        dropout: dropout layers in the network.
        norm_clipping: clipping of each client's update to an L2 norm.
        laplace_noise: Laplace noise that each client adds to its update.
    """

    dropout: Annotated[Dropout | None, Inline()] = None
    norm_clipping: Annotated[NormClipping | None, Inline()] = None
    laplace_noise: LaplaceNoise | None = None

    def all(self) -> tuple[Defense, ...]:
        """List the defences in the order in which training applies them."""
        shipped = [getattr(self, name) for name in DEFENSES]
        return (*(defense for defense in shipped if defense is not None), *(self.custom or {}).values())


@settings
class CoordinatorSection(SteerableDefenses):
    """A [coordinator](coordinator.md), which adjusts the defences of each cluster to the measured risk.

    A directive is the strength of a defence in a cluster, from 0 (no defence) to 1 (the strength set by the defence's
    keys). After each estimate of the red team (``red_team.every``), the server sends new directives with the models.

    Args:
        law: the control law.
        pooling: the largest weight of the mean of all models in each cluster's model.
        relief: the initial estimate of each defence's risk reduction at full strength, by the defence's name.
        cost: by defence, the first estimate of the held-out accuracy that the defence costs at full strength.
    """

    law: Annotated[LimitController, Inline()] = LimitController()
    pooling: Fraction | None = None
    relief: dict[str, PositiveFloat] = field(default_factory=dict)
    cost: dict[str, PositiveFloat] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, defense in (self.custom or {}).items():
            require(
                name not in PRIOR_EFFECTS, f"'custom.{name}' has the name of a shipped defence; choose a different name"
            )
            scalable = isinstance(defense, ScalableDefense)
            require(
                scalable,
                f"'custom.{name}' cannot be steered; add the method 'with_strength' to {type(defense).__name__}",
            )
        steered = self._steered()
        require(
            bool(steered) or self.law.min_clients > 0,
            "a coordinator must steer at least one defence (got none); add a table [coordinator.NAME] for one of "
            f"{', '.join(PRIOR_EFFECTS)}",
        )
        losses = [name for name in ("mixup", "flooding", "relaxloss", "ccl", "dp_sgd") if name in steered]
        require(
            len(losses) <= 1, f"a coordinator can steer only one of {' and '.join(losses)}; keep one of these tables"
        )
        for key, beliefs in (("relief", self.relief), ("cost", self.cost)):
            for name in beliefs:
                require(
                    name in steered,
                    f"'{key}' names '{name}', which is not a steered defence; remove '{name}' or steer this defence",
                )

    def coordinator(self) -> LimitController:
        """Build the coordinator of the steered defences."""
        knobs = {}
        for name, defense in self._steered().items():
            reduction, cost = PRIOR_EFFECTS.get(name, (Knob.risk_reduction, Knob.accuracy_cost))
            knobs[name] = Knob(defense, self.relief.get(name, reduction), self.cost.get(name, cost))
        return replace(self.law, knobs=knobs)

    def with_server_knobs(self, algorithm: Algorithm) -> Algorithm:
        """Add the coordinator's server mechanisms, such as pooling, to ``algorithm``."""
        if self.pooling is not None:
            algorithm = Pooling(algorithm, self.pooling)
        return PricedChoice(algorithm) if self.law.min_clients else algorithm

    def _steered(self) -> dict[str, Any]:
        """Return the steered defences by name; the value of pooling is None."""
        shipped = {name: getattr(self, name) for name in PRIOR_EFFECTS if name != "pooling"}
        defenses = {name: defense for name, defense in shipped.items() if defense is not None}
        return defenses | (self.custom or {}) | ({} if self.pooling is None else {"pooling": None})
