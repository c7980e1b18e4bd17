"""Checks of a simulation's parts, and of whether they go together, before anything is trained."""

from collections.abc import Sequence
from dataclasses import replace

from shoal.algorithms.wrapper import with_bases
from shoal.attacks import MEMBERSHIP_ATTACKS, needs_classes
from shoal.audit import RedTeam
from shoal.audit.record_table import OUTSIDER
from shoal.control import LimitController
from shoal.core.errors import InputError, describe, require
from shoal.data import Federation
from shoal.data.preferences import View
from shoal.data.swap_pairs import Duplicates, number_of_pairs
from shoal.defenses import TrainingSetup
from shoal.engine import Algorithm


def check_algorithm_fits(algorithm: Algorithm, setup: TrainingSetup, risk_period: int) -> None:
    """Raise `InputError` where an algorithm cannot train a network by local training, or lacks estimates of risk.

    An algorithm with a method ``check_layout``, also one that is wrapped, is asked about the network's. With
    ``risk_period`` 0 risks are never estimated.
    """
    algorithm.check(setup.first_local(), risk_period)
    for base in with_bases(algorithm):
        getattr(base, "check_layout", lambda _: None)(setup.model.layout)


def require_algorithm(algorithm: object) -> None:
    """Raise `InputError` unless ``algorithm`` has the methods of one."""
    missing = [name for name in ("check", "init", "plan", "server_update", "deployed") if not hasattr(algorithm, name)]
    require(
        not isinstance(algorithm, type), f"'algorithm' must be a value, such as FedAvg(); got {describe(algorithm)}"
    )
    require(
        not missing,
        f"{type(algorithm).__name__} is no algorithm: it has no method {', '.join(missing)} "
        "(see shoal.engine.Algorithm)",
    )


def require_defenses(defenses: object) -> None:
    """Raise `InputError` unless ``defenses`` is a list of defences."""
    if not isinstance(defenses, Sequence) or isinstance(defenses, str):
        raise InputError(f"'defenses' must be a list of defences, such as [L2(0.01)]; got {describe(defenses)}")
    for defense in defenses:
        value = hasattr(defense, "applied") and not isinstance(defense, type)
        require(value, f"'defenses' must hold defences, such as L2(0.01); got {describe(defense)}")


def check_coordinator(
    coordinator: LimitController, setup: TrainingSetup, algorithm: Algorithm, risk_period: int
) -> None:
    """Raise `InputError` where a coordinator has nothing to steer by, nothing to steer, or may not steer it.

    What would be refused of fixed defences at full strength is refused of steered ones: directives can lead there.
    """
    require(
        risk_period > 0,
        "a coordinator steers by the red team's estimates, so 'every' of the red team must be at least 1; got 0",
    )
    steers = bool(coordinator.knobs) or coordinator.min_clients > 0
    require(steers, "a coordinator needs at least one knob, or 'min_clients'; got neither")
    require(
        "price" not in coordinator.knobs, "'price' cannot be a knob: the directive of that name is of 'min_clients'"
    )
    for knob in coordinator.knobs.values():
        if knob.defense is not None:
            added = replace(setup, defenses=(*setup.defenses, knob.defense))
            setup = getattr(knob.defense, "applied", lambda _, added=added: added)(setup)
    algorithm.check(setup.first_local(), risk_period)


def check_references(
    count: int, federation: Federation, *, replayable: bool, duplicates: Duplicates = "keep", view: View = OUTSIDER
) -> None:
    """Raise `InputError` unless ``count`` reference federations can be trained and the attacks of a view measured."""
    if count == 0 and view == OUTSIDER:
        return
    allowed, given = (
        ("'reference_federations' must be 0", count) if count else ("'view' must be 'outsider'", f"'{view}'")
    )
    require(
        replayable,
        f"{allowed} with a round attack, such as property inference, or malicious clients, since such a run cannot be "
        f"replayed; got {given}",
    )
    pairs = number_of_pairs(federation, duplicates)
    asked = "'reference_federations' above 0" if count else f"'view' = \"{view}\""
    require(
        pairs >= 2,
        f"{asked} needs at least two training examples that each have a held-out example of "
        "their label, and of their group or client, in whose place it can be trained on; "
        f"got {pairs}, so give a larger test set",
    )


def require_attack_fits(team: RedTeam, federation: Federation) -> None:
    """Raise `InputError` where a regression's attack needs classes, or shadow models without a shadow set."""
    if federation.classes is not None:
        return
    working = [attack.__name__ for attack in MEMBERSHIP_ATTACKS.values() if not needs_classes(attack)]
    require(
        not needs_classes(team.attack),
        f"{type(team.attack).__name__} needs classes, which a regression does not have; attacks on the loss work, such "
        f"as RedTeam(attack={working[0]}()); those shipped are {', '.join(working)}",
    )
    shadows = team.attack.needs != "nothing" or (team.estimator == "shadow" and team.every > 0)
    require(
        not shadows or len(federation.shadow) >= 2,
        f"{type(team.attack).__name__} needs a shadow set of at least 2 examples, on which the server trains shadow "
        f"models; got {len(federation.shadow)}; give 'shadow' to Federation.from_tensors",
    )
