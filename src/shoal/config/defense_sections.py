"""The tables [defenses] and [coordinator]: the defences that are applied, and those that a coordinator steers."""

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
        augmentation: random transformations of the images that clients train on; an empty table has the defaults.
        l2: an L2 penalty.
        relaxloss: a level of the loss, and flat posteriors below it.
        flooding: a level below which the loss is raised.
        shorter_training: fewer local steps.
        mixup: mixtures of examples.
        ccl: convex-concave loss; an empty table has the defaults. Of ``mixup``, ``flooding``, ``relaxloss`` and ``ccl``
            only one may be given, and none together with ``dp_sgd``.
        dp_sgd: clipping of each example's gradient, with noise; see [differential privacy](#differential-privacy). No
            epsilon is stated for steered noise.
        custom: your own defences, a table ``custom.NAME`` in this one for each, with ``name = "module:Name"`` and the
            keys of that class. What is steered needs the method ``scaled``; see
            [your own](adding.md#steered-by-a-coordinator).
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
    """Defences of clients and server; those that are left out are not applied.

    Args:
        dropout: dropout.
        norm_clipping: clipping of updates.
        laplace_noise: noise of the clients on what they send, by one of two scales.
    """

    dropout: Annotated[Dropout | None, Inline()] = None
    norm_clipping: Annotated[NormClipping | None, Inline()] = None
    laplace_noise: LaplaceNoise | None = None

    def all(self) -> tuple[Defense, ...]:
        """The defences, in the order in which they are applied."""
        shipped = [getattr(self, name) for name in DEFENSES]
        return (*(defense for defense in shipped if defense is not None), *(self.custom or {}).values())


@settings
class CoordinatorSection(SteerableDefenses):
    """A coordinator that turns measured risk into directives for the training of each cluster; see
    [the coordinator](coordinator.md). A directive is a number for each cluster and each defence given here, from 0 (not
    at all, and training is bit for bit what it is without) to 1 (as strong as the keys of that defence say). The server
    gives new ones after each of the red team's estimates (``red_team.every``), sends them with the model, and they hold
    in the cluster's next rounds.

    Args:
        law: how it steers.
        pooling: the largest part of the mean of all models in each model.
        relief: prior mean of the fall of the risk by a knob at full strength, by its name.
        cost: prior mean of the fall of held-out accuracy.
    """

    law: Annotated[LimitController, Inline()] = LimitController()
    pooling: Fraction | None = None
    relief: dict[str, PositiveFloat] = field(default_factory=dict)
    cost: dict[str, PositiveFloat] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, defense in (self.custom or {}).items():
            require(name not in PRIOR_EFFECTS, f"'custom.{name}' has the name of a shipped defence; call it otherwise")
            scalable = isinstance(defense, ScalableDefense)
            require(scalable, f"'custom.{name}' cannot be steered: {type(defense).__name__} has no method 'scaled'")
        steered = self._steered()
        require(
            bool(steered) or self.law.min_clients > 0,
            "a coordinator needs something to steer, such as [coordinator.augmentation]; it can steer "
            f"{', '.join(PRIOR_EFFECTS)}",
        )
        losses = [name for name in ("mixup", "flooding", "relaxloss", "ccl", "dp_sgd") if name in steered]
        require(len(losses) <= 1, f"of {' and '.join(losses)} a coordinator can steer one only; leave the others out")
        for key, beliefs in (("relief", self.relief), ("cost", self.cost)):
            for name in beliefs:
                require(name in steered, f"'{key}' names '{name}', which is not steered; steer it or leave it out")

    def coordinator(self) -> LimitController:
        """The coordinator with its knobs."""
        knobs = {}
        for name, defense in self._steered().items():
            reduction, cost = PRIOR_EFFECTS.get(name, (Knob.risk_reduction, Knob.accuracy_cost))
            knobs[name] = Knob(defense, self.relief.get(name, reduction), self.cost.get(name, cost))
        return replace(self.law, knobs=knobs)

    def with_server_knobs(self, algorithm: Algorithm) -> Algorithm:
        """``algorithm``, wrapped in what follows the directives of the server's own means."""
        if self.pooling is not None:
            algorithm = Pooling(algorithm, self.pooling)
        return PricedChoice(algorithm) if self.law.min_clients else algorithm

    def _steered(self) -> dict[str, Any]:
        """The defences that are steered, by name; pooling, which is the server's own, has none."""
        shipped = {name: getattr(self, name) for name in PRIOR_EFFECTS if name != "pooling"}
        given = {name: defense for name, defense in shipped.items() if defense is not None}
        return given | (self.custom or {}) | ({} if self.pooling is None else {"pooling": None})
