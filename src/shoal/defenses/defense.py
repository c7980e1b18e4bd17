"""A defence maps a `TrainingSetup` to a `TrainingSetup`."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from shoal.core.errors import require
from shoal.engine import ClusterRound, LocalDefense, LocalSGD, Objective, UpdateFilter
from shoal.engine.local_sgd import PRIVATE_OBJECTIVE
from shoal.models import Model
from shoal.models.model import cross_entropy


@dataclass(frozen=True)
class TrainingSetup:
    """What a defence may change.

    Args:
        model: the network; fixed before the first round.
        local: local training before any defence.
        update_filter: applied by the server to every update; None: none.
        client_filter: applied by every honest client to its update before it sends it; None: none.
        defenses: change local training, in order, anew for each cluster in each round.
        kind: of the examples, as `shoal.Federation.kind` says, for defences that are of images alone; None: not known.

    Example:
        >>> import shoal
        >>> from shoal.defenses import TrainingSetup
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> setup = TrainingSetup(model, shoal.LocalSGD())
        >>> after = shoal.L2(0.1).applied(shoal.NormClipping(1.0).applied(setup))
        >>> after.first_local().weight_decay, after.update_filter, after.local == setup.local
        (0.1, NormClipping(max_norm=1.0), True)
    """

    model: Model
    local: LocalSGD
    update_filter: UpdateFilter | None = None
    defenses: tuple[LocalDefense, ...] = ()
    kind: str | None = None
    client_filter: UpdateFilter | None = None

    def first_local(self) -> LocalSGD:
        """Local training of cluster 0 in the first round, which decides what trains it and what it spends."""
        local = self.local
        for defense in self.defenses:
            local = defense.local(local, ClusterRound(round=1, cluster=0))
        return local


class Defense(Protocol):
    """A defence against what clients and the server can learn from updates, or do by them; a value.

    Example:
        >>> from dataclasses import dataclass, replace
        >>> import shoal
        >>> @dataclass(frozen=True)
        ... class SmallerSteps:
        ...     def applied(self, setup):
        ...         local = replace(setup.local, learning_rate=setup.local.learning_rate / 10)
        ...         return replace(setup, local=local)
        ...
        >>> federation = shoal.Federation.from_tensors([([[-1.0], [1.0]], [0, 1])] * 3, test=([[2.0]], [1]))
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> fast, slow = shoal.LocalSGD(learning_rate=0.5), shoal.LocalSGD(learning_rate=0.05)
        >>> defended = shoal.simulate(federation, model, shoal.FedAvg(), fast, rounds=2, defenses=[SmallerSteps()])
        >>> plain = shoal.simulate(federation, model, shoal.FedAvg(), slow, rounds=2)
        >>> defended.state.models.equal(plain.state.models)
        True
    """

    def applied(self, setup: TrainingSetup) -> TrainingSetup:
        """The setup with this defence.

        A defence that changes local training adds itself to ``setup.defenses`` and implements `LocalDefense` as well.

        Raises:
            InputError: it cannot defend this setup.
        """
        ...


def defended(setup: TrainingSetup, defenses: Sequence[Defense]) -> TrainingSetup:
    """The setup with all ``defenses``, applied in order.

    Example:
        >>> import shoal
        >>> from shoal.defenses import TrainingSetup, defended
        >>> model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))
        >>> setup = TrainingSetup(model, shoal.LocalSGD(steps=10))
        >>> setup = defended(setup, [shoal.L2(0.1), shoal.ShorterTraining(0.5)])
        >>> setup.first_local().weight_decay, setup.first_local().steps_of(20)
        (0.1, 5)
    """
    for defense in defenses:
        setup = defense.applied(setup)
    return setup


def with_objective(setup: TrainingSetup, defense: LocalDefense) -> TrainingSetup:
    """The setup with a defence whose `local` sets the objective of steps, by `minimising`.

    Raises:
        InputError: local steps are private, or minimise another objective already.
    """
    first = setup.first_local()
    require(not first.private, PRIVATE_OBJECTIVE)
    _require_one_objective(first, defense)
    return replace(setup, defenses=(*setup.defenses, defense))


def minimising(local: LocalSGD, objective: Objective) -> LocalSGD:
    """Local training whose steps minimise an objective.

    Raises:
        InputError: they are private, or minimise another objective already.
    """
    _require_one_objective(local, objective)
    return replace(local, objective=objective)


def _require_one_objective(local: LocalSGD, other: object) -> None:
    both = (type(local.objective).__name__, type(other).__name__)
    require(
        local.objective is None,
        f"{' and '.join(both)} each replace what a local step minimises, so one of the two must be left out",
    )


def require_cross_entropy(name: str, model: Model) -> None:
    """Raise `InputError` unless a defence that is a formula of posteriors has a model with cross-entropy."""
    require(
        model.loss is cross_entropy,
        f"{name} is of classification by cross-entropy, but the model's loss is another; leave 'loss' of the Model out",
    )


def require_strength(strength: float) -> None:
    """Raise `InputError` unless a defence can be applied at ``strength`` of its full strength."""
    require(0 <= strength <= 1, f"'strength' must be in [0, 1]; got {strength:g}")
