"""Rounds of a toy federation, with the directives that a server would set."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from shoal.core.randomness import Stream
from shoal.data import Preferences
from shoal.engine import Cohort, DeployedModels, Engine, LocalSGD, RoundPlan, RoundReport, State, Training
from shoal.models import Model

SEED = 2
"""Of whose initial models each is chosen by some of the six clients, and by unequally many, whether two or three."""


@pytest.fixture
def model(mlp: Model) -> Model:
    """The dense network alone: `tests/laws/test_rounds.py::test_backends_agree` holds its backend to the loop for every
    algorithm, and both to the convolutional network for every kind of step.
    """
    return mlp


@pytest.fixture
def play(mlp, build) -> Callable[..., tuple[list[State], list[RoundReport]]]:
    """Plays rounds on the dense network: the states, the initial one first, and the reports.

    Numbers by name are directives, one for each cluster; ``risks`` are what was measured, and ``federation`` and
    ``local`` may be others.
    """

    def made(
        algorithm: Any,
        rounds: int = 3,
        *,
        federation: Any = None,
        local: LocalSGD | None = None,
        risks: Sequence[float] | None = None,
        training: dict[str, Any] | None = None,
        **directives: Sequence[float],
    ) -> tuple[list[State], list[RoundReport]]:
        local = local or LocalSGD(steps=2, batch_size=4, learning_rate=0.1)
        with Engine(mlp, threads=1) as engine:
            given = federation or build()
            run = Training(engine.prepare(given), algorithm, local, engine, Stream(SEED), **(training or {}))
            first = replace(run.start(), directives={name: numbers(each) for name, each in directives.items()})
            first = first if risks is None else replace(first, risks=numbers(risks))
            played = list(run.rounds(first, rounds))
        return [first, *(state for state, _ in played)], [report for _, report in played]

    return made


def numbers(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture
def ask(mlp, build) -> Callable[..., tuple[RoundPlan, DeployedModels, Cohort, Tensor]]:
    """An algorithm's plan and its deployed models, the cohort of all six clients, and the losses of their examples.

    ``losses`` and ``preferences`` replace the clients' own, and numbers by name are directives.
    """

    def asked(
        algorithm: Any,
        *,
        losses: Tensor | None = None,
        preferences: Preferences | None = None,
        federation: Any = None,
        risks: Sequence[float] = (0.5, 0.5),
        **directives: Sequence[float],
    ) -> tuple[RoundPlan, DeployedModels, Cohort, Tensor]:
        with Engine(mlp, threads=1) as engine:
            training = Training(federation or build(), algorithm, LocalSGD(), engine, Stream(SEED))
            of_clusters = {name: numbers(each) for name, each in directives.items()}
            state = replace(training.start(), risks=numbers(risks), directives=of_clusters)
            cohort = training.cohort_of(state, torch.arange(6))
            cohort = cohort if losses is None else replace(cohort, scores=lambda *_: losses)
            cohort = cohort if preferences is None else replace(cohort, preferences=preferences)
            plan, deployed = algorithm.plan(state, cohort), algorithm.deployed_models(state, cohort)
            return plan, deployed, cohort, cohort.example_losses(state.models)

    return asked
