"""Choice within a limit of risk."""

from dataclasses import replace

import pytest
import torch

from shoal.algorithms import IFCA, IFCAWithinLimit
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Preferences
from shoal.engine import Engine, LocalSGD, Training


def test_least_loss_within_the_limit_and_least_risk_beyond_it(mlp, build):
    losses = torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 5 + [[0.1, 0.2, 0.4, 0.3]], dtype=torch.float64)
    # A model at the limit is within it; of the two least risky, one has less loss.
    limits = torch.tensor([1.0, 0.8, 0.79, 0.6, 0.59, 0.0], dtype=torch.float64)
    algorithm = IFCAWithinLimit(IFCA(4))
    with Engine(mlp) as engine:
        training = Training(build(), algorithm, LocalSGD(), engine, Stream(5))
        state = replace(training.start(), risks=torch.tensor([0.9, 0.8, 0.6, 0.6], dtype=torch.float64))
        cohort = training.cohort_of(state, torch.arange(6))
        cohort = replace(cohort, preferences=Preferences(limits, limits), scores=lambda *_: losses)
        plan, deployed = algorithm.plan(state, cohort), algorithm.deployed(state, cohort)
    assert plan.assignment.tolist() == deployed.model.tolist() == [0, 1, 2, 2, 2, 3]
    assert plan.losses is losses


def test_limits_of_1_are_ifca_bit_for_bit(play, build):
    for ifca in (IFCA(3), IFCA(2, choose_by="batch", weighting="examples")):
        risks = (0.9, 0.6, 0.7)[: ifca.clusters]
        free, plain = (
            play(each, federation=build(threshold=1.0), risks=risks)[0][-1] for each in (IFCAWithinLimit(ifca), ifca)
        )
        assert torch.equal(free.models, plain.models)
        assert torch.equal(free.assignment, plain.assignment)


def test_limits_bind_in_training(play, build):
    (*_, last), _ = play(IFCAWithinLimit(IFCA(2)), federation=build(threshold=0.65), risks=(0.9, 0.6))
    assert last.assignment.tolist() == [1] * 6


def test_it_needs_a_red_team():
    with pytest.raises(InputError, match=r"^IFCA within limits chooses by risk, so the red team's 'every' must be at "):
        IFCAWithinLimit().check(LocalSGD(), 0)
