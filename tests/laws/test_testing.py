"""The laws of `shoal.testing` tell what is wrong with an algorithm, an attack or a defence."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

import shoal
from shoal.algorithms import Derived
from shoal.core.settings import settings
from shoal.defenses import TrainingSetup
from shoal.testing import check_algorithm, check_attack, check_defense


class NoValue(Derived):
    """Two are never equal."""


@dataclass(frozen=True)
class Incomplete:
    def plan(self, state, cohort):
        return shoal.FedAvg().plan(state, cohort)


@settings
class Counting(Derived):
    """Keeps the number of rounds on itself."""

    rounds: dict[str, int] = field(default_factory=dict)

    def server_update(self, state, cohort, plan, aggregate):
        self.rounds["done"] = self.rounds.get("done", 0) + 1
        return replace(state, models=aggregate.models * self.rounds["done"])


@settings
class InPlace(Derived):
    def server_update(self, state, cohort, plan, aggregate):
        state.models.add_(1.0)
        return replace(state, models=aggregate.models)


@settings
class Unseeded(Derived):
    def init(self, engine, federation, local, stream):
        state = self.inner.init(engine, federation, local, stream)
        return replace(state, models=torch.rand_like(state.models))


@settings
class FewRows(Derived):
    def add_tensors(self, state, layout):
        return replace(state, clients={"few": torch.zeros(2)})


@settings
class Shared(Derived):
    def add_tensors(self, state, layout):
        return replace(state, server={"model": state.models})


@settings
class Ordered(Derived):
    """Tells clients apart by their positions."""

    def add_tensors(self, state, layout):
        return replace(state, clients={"position": torch.arange(len(state.assignment))})


@settings
class Heavy(Derived):
    def plan(self, state, cohort):
        plan = super().plan(state, cohort)
        return replace(plan, trainings=tuple(replace(each, weights=2 * each.weights) for each in plan.trainings))


@settings
class Astray(Derived):
    def plan(self, state, cohort):
        plan = super().plan(state, cohort)
        return replace(plan, assignment=plan.assignment + 1)


ALGORITHMS = [
    (Incomplete(), "Incomplete lacks a method of Algorithm"),
    (NoValue(), "NoValue differs from its copy"),
    (Unseeded(), "the first state depends on more than the seed"),
    (FewRows(), "a tensor of State.clients lacks a client"),
    (Shared(), "two tensors of the state share memory"),
    (Astray(), "a plan assigns a client to an unknown model"),
    (Heavy(), "the weights of a chosen cluster must sum to 1"),
    (InPlace(), "a round changes the given state"),
    (Counting(), "a round depends on more than the seed and the state"),
    (Ordered(), "State.clients.'position'. depends on the order of the clients"),
]


@pytest.mark.parametrize(("algorithm", "sentence"), ALGORITHMS, ids=lambda each: type(each).__name__)
def test_a_faulty_algorithm_breaks_a_law(algorithm, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_algorithm(algorithm)


class Fitted(shoal.Gap):
    threshold = 0.0

    def fit(self, records, stream):
        return self


@settings
class OneScore(Fitted):
    def score(self, query):
        return np.zeros(1)


@settings
class Infinite(Fitted):
    def score(self, query):
        return np.full(len(query.labels), np.inf)


@settings
class Ranked(Fitted):
    def score(self, query):
        return np.arange(len(query.labels), dtype=float)


@settings
class Drawn(Fitted):
    def score(self, query):
        return np.random.default_rng().random(len(query.labels))


@pytest.mark.parametrize(
    ("attack", "sentence"),
    [
        (OneScore(), "scores must be one number per record"),
        (Infinite(), "a score is not finite"),
        (Ranked(), "a score depends on other records"),
        (Drawn(), "scores depend on more than the records and the stream"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_faulty_attack_breaks_a_law(attack, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_attack(attack)


@settings
class Nothing:
    def apply(self, setup):
        return None


@settings
class Changing:
    def apply(self, setup):
        object.__setattr__(setup, "local", replace(setup.local, weight_decay=0.1))
        return setup


@settings
class Noisy:
    def apply(self, setup: TrainingSetup):
        return replace(setup, update_filter=self)

    def filter(self, starts, ends, seeds):
        return ends + torch.rand_like(ends)


@pytest.mark.parametrize(
    ("defense", "sentence"),
    [
        (Nothing(), "'apply' must return a TrainingSetup"),
        (Changing(), "'apply' changes the given setup"),
        (Noisy(), "training depends on more than the seed"),
    ],
    ids=lambda each: type(each).__name__,
)
def test_a_faulty_defence_breaks_a_law(defense, sentence):
    with pytest.raises(AssertionError, match=sentence):
        check_defense(defense)


@pytest.mark.parametrize("defense", [shoal.L2(0.1), shoal.DPSGD(1.0, 1.0), shoal.NormClipping(1.0), shoal.Mixup(0.4)])
def test_shipped_defences_keep_the_laws(defense):
    check_defense(defense)
