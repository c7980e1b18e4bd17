"""Checks of a simulation's settings and of their combination, before training."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from shoal.algorithms.clusters.ifca import most_clusters
from shoal.algorithms.wrapper import with_bases
from shoal.attacks import MEMBERSHIP_ATTACKS, needs_classes
from shoal.audit import NEED_HOLDOUT, RedTeam
from shoal.audit.record_table import OUTSIDER
from shoal.control import LimitController
from shoal.core.errors import InputError, describe, locate_errors, require, require_instance
from shoal.data import Event, Federation
from shoal.data.preferences import View
from shoal.data.swap_pairs import Duplicates, number_of_pairs
from shoal.defenses import Defense, TrainingSetup, apply_defenses
from shoal.engine import Algorithm, Forgetting, LocalSGD
from shoal.forgetting import Continue


def checked_setup(
    setup: TrainingSetup,
    defenses: Sequence[Defense],
    algorithm: Algorithm,
    coordinator: LimitController | None,
    risk_period: int,
) -> TrainingSetup:
    """Return the clients' training setup with the defences applied, after checking the combination.

    Args:
        algorithm: the algorithm, whose optional method ``check_layout`` checks the network's parameters.
        risk_period: the number of rounds between risk estimates; 0 disables estimates.

    Raises:
        InputError: two settings exclude each other.
    """
    with locate_errors("defenses"):
        setup = apply_defenses(setup, defenses)
    with locate_errors("algorithm"):
        algorithm.check(setup.first_local(), risk_period)
        for base in with_bases(algorithm):
            getattr(base, "check_layout", lambda _: None)(setup.model.layout)
    if coordinator is not None:
        with locate_errors("coordinator"):
            _check_coordinator(coordinator, setup, algorithm, risk_period)
    return setup


def require_algorithm(algorithm: object) -> None:
    """Raise `InputError` if ``algorithm`` lacks the methods of an algorithm."""
    missing = [
        name for name in ("check", "init", "plan", "server_update", "deployed_models") if not hasattr(algorithm, name)
    ]
    require(
        not isinstance(algorithm, type),
        f"'algorithm' must be an instance, such as FedAvg() (got {describe(algorithm)})",
    )
    require(
        not missing,
        f"'algorithm': {type(algorithm).__name__} lacks the methods {', '.join(missing)} (see shoal.engine.Algorithm)",
    )


def require_defenses(defenses: object) -> None:
    """Raise `InputError` if ``defenses`` is not a list of defences."""
    if not isinstance(defenses, Sequence) or isinstance(defenses, str):
        raise InputError(f"'defenses' must be a list of defences, such as [L2(0.01)] (got {describe(defenses)})")
    for defense in defenses:
        value = hasattr(defense, "apply") and not isinstance(defense, type)
        require(value, f"'defenses' must contain only defences, such as L2(0.01) (got {describe(defense)})")


def _check_coordinator(
    coordinator: LimitController, setup: TrainingSetup, algorithm: Algorithm, risk_period: int
) -> None:
    """Raise `InputError` if a coordinator has no risks or no knobs, or if the algorithm excludes a knob.

    The checks assume full strength for the defences of knobs.
    """
    require(risk_period > 0, "red_team.every must be at least 1 with a coordinator (got 0)")
    steers = bool(coordinator.knobs) or coordinator.min_clients > 0
    require(steers, "a coordinator needs at least one knob or 'min_clients'; add one")
    require(
        "price" not in coordinator.knobs,
        "a knob cannot have the name 'price', which 'min_clients' uses; choose another name",
    )
    for knob in coordinator.knobs.values():
        if knob.defense is not None:
            added = replace(setup, defenses=(*setup.defenses, knob.defense))
            setup = getattr(knob.defense, "apply", lambda _, added=added: added)(setup)
    algorithm.check(setup.first_local(), risk_period)


def check_events(simulation: Any, local: LocalSGD) -> None:  # noqa: ANN401 - its class calls this function
    """Raise `InputError` if events or forgetting do not fit the simulation; ``local`` includes all defences."""
    forgetting, algorithm = simulation.forgetting, simulation.algorithm
    require_instance("forgetting", forgetting, Forgetting, "such as Continue()")
    if not simulation.events:
        with locate_errors("forgetting"):
            require(forgetting == Continue(), f"'{forgetting.name}' needs clients that leave; add 'events'")
        return
    for event in simulation.events:
        require_instance("events", event, Event, "such as Event(round=5, leave=('north',))")
    assert simulation.presence is not None  # checks the events' clients and rounds
    start = simulation.start
    with locate_errors("events"):
        for part in with_bases(algorithm):
            why, title = getattr(part, "membership_barrier", ""), getattr(part, "title", type(part).__name__)
            require(not why, f"clients cannot leave or join, because {title} {why}; use 'ifca' or 'fedavg'")
        require(
            simulation.replayable,
            "a run with a property attack or malicious clients cannot have events; remove one of them",
        )
        require(
            simulation.federation.schedule is None,
            "a federation with a schedule cannot have events; remove one of them",
        )
        require(
            start is None or start.public,
            "clients cannot leave if 'start' may be trained on their examples; use start(public=True) for other data",
        )
        require(simulation.canaries is None, "a federation with canaries cannot have events; remove one of them")
        require(
            most_clusters(algorithm) is None,
            "algorithm.clusters = 'auto' would use the data of clients that leave; set a number",
        )
    with locate_errors("forgetting"):
        forgetting.check(algorithm, local, simulation.release)


def check_references(
    count: int, federation: Federation, *, replayable: bool, duplicates: Duplicates = "keep", view: View = OUTSIDER
) -> None:
    """Raise `InputError` if the federation cannot have ``count`` reference federations or attacks of ``view``."""
    if count == 0 and view == OUTSIDER:
        return
    key, value = ("'reference_federations' must be 0", count) if count else ("'view' must be 'outsider'", f"'{view}'")
    require(
        replayable,
        f"{key} with a round attack (such as property inference) or malicious clients (got {value})",
    )
    pairs = number_of_pairs(federation, duplicates)
    setting = "'reference_federations' above 0" if count else f"'view' = \"{view}\""
    require(
        pairs >= 2,
        f"{setting} needs at least 2 training examples with a held-out example of the same label and of the same "
        f"group or client (got {pairs}); use a larger test set",
    )


def check_red_team(team: RedTeam, federation: Federation) -> None:
    """Raise `InputError` if the red team needs classes or examples that the federation does not have."""
    name = type(team.attack).__name__
    working = [attack.__name__ for attack in MEMBERSHIP_ATTACKS.values() if not needs_classes(attack)]
    require(
        federation.classes is not None or not needs_classes(team.attack),
        f"red_team.attack: {name} needs a classification; for a regression, choose {' or '.join(working)}, as in "
        f"RedTeam(attack={working[0]}())",
    )
    shadows = team.attack.needs != "nothing" or (team.estimator == "shadow" and team.every > 0)
    require(
        not shadows or len(federation.shadow) >= 2,
        f"{name} with the '{team.estimator}' estimator needs a shadow set of at least 2 examples "
        f"(got {len(federation.shadow)}); set 'shadow', or 'data.shadow_examples' or 'data.shadow_fraction' in a file",
    )
    require(
        team.estimator not in NEED_HOLDOUT or len(federation.holdout.indices) > 0 or team.every == 0,
        f"the '{team.estimator}' estimator needs hold-out examples of the clients; set 'holdout', or "
        "'data.holdout_examples' or 'data.holdout_fraction' in a file",
    )
