"""The tables [defenses] and [coordinator]: fixed defences, and those that a coordinator steers."""

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
"""Prior means of each knob's risk reduction and accuracy cost at full strength (`Knob`)."""


@settings
class SteerableDefenses:
    """The shipped defences that a coordinator can steer, and a user's own.

    Args:
        augmentation: random transformations of training images; an empty table has the defaults.
        l2: an L2 penalty.
        relaxloss: a level of the loss, and flat posteriors below it.
        flooding: a level below which the loss is raised.
        shorter_training: fewer local steps.
        mixup: mixtures of examples.
        ccl: convex-concave loss; an empty table has the defaults. ``mixup``, ``flooding``, ``relaxloss``, ``ccl`` and
            ``dp_sgd`` exclude each other.
        dp_sgd: clipping of each example's gradient, with noise; see [differential privacy](#differential-privacy).
            Steered noise has no epsilon.
        custom: your own defences, one table ``custom.NAME`` each, with ``name = "module:Name"`` and the keys of that
            class. A steered one needs the method ``with_strength``; see [your own](adding.md#steered-by-a-coordinator).
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
    """Defences of clients and server; a missing table applies none.

    Args:
        dropout: dropout.
        norm_clipping: clipping of updates.
        laplace_noise: Laplace noise of each client on its update, by one of two scales.
    """

    dropout: Annotated[Dropout | None, Inline()] = None
    norm_clipping: Annotated[NormClipping | None, Inline()] = None
    laplace_noise: LaplaceNoise | None = None

    def all(self) -> tuple[Defense, ...]:
        """List the defences in the order of their application."""
        shipped = [getattr(self, name) for name in DEFENSES]
        return (*(defense for defense in shipped if defense is not None), *(self.custom or {}).values())


@settings
class CoordinatorSection(SteerableDefenses):
    """A coordinator that turns measured risk into directives for the training of each cluster; see
    [the coordinator](coordinator.md). A directive is the strength of a defence in a cluster, from 0 (training is
    bit-identical without it) to 1 (the strength of the defence's keys). The server sets new directives after each
    estimate of the red team (``red_team.every``) and sends them with the model for the cluster's next rounds.

    Args:
        law: the control law.
        pooling: the largest share of the mean of all models in each model.
        relief: prior mean of each knob's risk reduction at full strength, by name.
        cost: prior mean of each knob's cost in held-out accuracy at full strength, by name.
    """

    law: Annotated[LimitController, Inline()] = LimitController()
    pooling: Fraction | None = None
    relief: dict[str, PositiveFloat] = field(default_factory=dict)
    cost: dict[str, PositiveFloat] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, defense in (self.custom or {}).items():
            require(name not in PRIOR_EFFECTS, f"'custom.{name}' has the name of a shipped defence; rename it")
            scalable = isinstance(defense, ScalableDefense)
            require(
                scalable, f"'custom.{name}' cannot be steered: {type(defense).__name__} has no method 'with_strength'"
            )
        steered = self._steered()
        require(
            bool(steered) or self.law.min_clients > 0,
            "a coordinator needs something to steer, such as [coordinator.augmentation]; it can steer "
            f"{', '.join(PRIOR_EFFECTS)}",
        )
        losses = [name for name in ("mixup", "flooding", "relaxloss", "ccl", "dp_sgd") if name in steered]
        require(len(losses) <= 1, f"a coordinator can steer only one of {' and '.join(losses)}; leave the others out")
        for key, beliefs in (("relief", self.relief), ("cost", self.cost)):
            for name in beliefs:
                require(name in steered, f"'{key}' names '{name}', which is not steered; steer it or leave it out")

    def coordinator(self) -> LimitController:
        """Build the coordinator with its knobs."""
        knobs = {}
        for name, defense in self._steered().items():
            reduction, cost = PRIOR_EFFECTS.get(name, (Knob.risk_reduction, Knob.accuracy_cost))
            knobs[name] = Knob(defense, self.relief.get(name, reduction), self.cost.get(name, cost))
        return replace(self.law, knobs=knobs)

    def with_server_knobs(self, algorithm: Algorithm) -> Algorithm:
        """Wrap ``algorithm`` for the directives that the server itself follows."""
        if self.pooling is not None:
            algorithm = Pooling(algorithm, self.pooling)
        return PricedChoice(algorithm) if self.law.min_clients else algorithm

    def _steered(self) -> dict[str, Any]:
        """The steered defences by name; the server's own pooling has the value None."""
        shipped = {name: getattr(self, name) for name in PRIOR_EFFECTS if name != "pooling"}
        defenses = {name: defense for name, defense in shipped.items() if defense is not None}
        return defenses | (self.custom or {}) | ({} if self.pooling is None else {"pooling": None})
