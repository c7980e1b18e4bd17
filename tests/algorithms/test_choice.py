"""Rules of choice: within a limit, by a price, and by risk and loss over any algorithm."""

import pytest
import torch

from shoal.algorithms import (
    IFCA,
    IFCAMIR,
    FedAvg,
    FedEM,
    FedRC,
    FedSoft,
    HypCluster,
    IFCAWithinLimit,
    PricedChoice,
    RiskAwareChoice,
)
from shoal.core.errors import InputError
from shoal.data import Preferences


def test_least_loss_within_the_limit_and_least_risk_beyond_it(ask):
    losses = torch.tensor([[0.1, 0.2, 0.3, 0.4]] * 5 + [[0.1, 0.2, 0.4, 0.3]], dtype=torch.float64)
    # A model at the limit is within it; of the two least risky, one has less loss.
    limits = torch.tensor([1.0, 0.8, 0.79, 0.6, 0.59, 0.0], dtype=torch.float64)
    asked = {"losses": losses, "preferences": Preferences(limits, limits), "risks": (0.9, 0.8, 0.6, 0.6)}
    plan, deployed, *_ = ask(IFCAWithinLimit(IFCA(4)), **asked)
    assert plan.assignment.tolist() == deployed.model.tolist() == [0, 1, 2, 2, 2, 3]
    assert plan.losses is losses


def test_limits_bind_in_training(play, build):
    (*_, last), _ = play(IFCAWithinLimit(IFCA(2)), federation=build(threshold=0.65), risks=(0.9, 0.6))
    assert last.assignment.tolist() == [1] * 6


LOSSES = torch.tensor([[1.0, 1.2], [1.0, 1.05], [1.3, 1.0]] * 2, dtype=torch.float64)


def weighing(beta: float) -> Preferences:
    return Preferences(*torch.full((2, 6), beta, dtype=torch.float64))


@pytest.mark.parametrize("base", [IFCA(2), IFCAMIR()], ids=repr)
@pytest.mark.parametrize(
    ("price", "choice"),
    [((0.0, 0.0), [0, 0, 1]), ((0.1, 0.0), [0, 1, 1]), ((0.3, 0.0), [1, 1, 1]), ((0.0, 0.5), [0, 0, 0])],
)
def test_clients_add_the_price_to_the_loss_in_training_and_after_it(ask, base, price, choice):
    for algorithm, directives in (
        (PricedChoice(base, price), {}),
        (PricedChoice(base), {"price": price}),
        (PricedChoice(base, (9.0, 0.0)), {"price": price}),
    ):
        plan, deployed, *_ = ask(algorithm, losses=LOSSES, preferences=weighing(0.0), **directives)
        assert plan.assignment.tolist() == deployed.model.tolist() == choice * 2
        assert plan.trainings[0].init_index.tolist() == choice * 2
        assert plan.losses is LOSSES, "what is recorded has no price"


def test_ifca_mir_weighs_the_price_as_it_weighs_the_loss(ask):
    # 0.5 * (loss + price) + 0.5 * risk: the first client moves when the price is above 0.2 - 0.1.
    for price, choice in ((0.09, 0), (0.11, 1)):
        algorithm = PricedChoice(IFCAMIR(), (price, 0.0))
        plan, *_ = ask(algorithm, losses=LOSSES, preferences=weighing(0.5), risks=(0.7, 0.6))
        assert plan.assignment[0] == choice


def test_other_prices_are_one_sentence(play):
    with pytest.raises(InputError, match=r"^'prices' must be .*\(got 3\)$"):
        play(PricedChoice(IFCA(2), (0.0, 0.0, 0.1)))
    for wrong in ((1.0,), (float("nan"), 0.0)):
        with pytest.raises(InputError, match=r"^the directive 'price' must be 2 finite numbers"):
            play(PricedChoice(IFCA(2)), price=wrong)


RISKS = (0.9, 0.6, 0.7)
BASES = [IFCA(3), HypCluster(3), HypCluster(3, "farthest-first"), FedSoft(3, 0.5), FedEM(3), FedRC(3), FedAvg()]


@pytest.mark.parametrize("base", [HypCluster(3), FedSoft(3, smoother=0.0)], ids=repr)
def test_by_beta_alone_clients_and_examples_choose_the_model_of_least_risk(play, build, base):
    states, reports = play(RiskAwareChoice(base), federation=build(beta=1.0), risks=RISKS)
    assert states[-1].assignment.tolist() == [1] * 6
    assert not torch.equal(play(base)[0][-1].assignment, states[-1].assignment)
    # Models of higher risk are trained by nobody.
    assert [report.plan.trainings[0].weights.any(dim=1).tolist() for report in reports] == [[False, True, False]] * 3


@pytest.mark.parametrize("beta", [0.3, 1.0])
def test_responsibilities_of_fedem_weigh_risk_by_the_formula(ask, build, beta):
    plan, _, cohort, losses = ask(RiskAwareChoice(FedEM(3)), federation=build(beta=beta), risks=RISKS)
    odds = (-(1 - beta) * losses - beta * torch.tensor(RISKS)).exp() / 3
    q = torch.stack([each.example_weights for each in plan.trainings], dim=1)
    torch.testing.assert_close(q, (odds / odds.sum(dim=1, keepdim=True)).float())
    # What is recorded is the loss.
    torch.testing.assert_close(plan.losses, cohort.means(losses))


def test_importances_of_fedsoft_count_examples_by_loss_and_risk(ask, build):
    plan, _, cohort, losses = ask(RiskAwareChoice(FedSoft(3, smoother=0.0)), federation=build(beta=0.5), risks=RISKS)
    best = (0.5 * losses + 0.5 * torch.tensor(RISKS)).argmin(dim=1)
    points = torch.stack([torch.bincount(cohort.owners[best == k], minlength=6) for k in range(3)]).double()
    torch.testing.assert_close(plan.trainings[0].weights, points / points.sum(dim=1, keepdim=True).clamp(min=1))
    assert not torch.equal(best, losses.argmin(dim=1))
    torch.testing.assert_close(plan.losses, cohort.means(losses))


def test_prices_are_of_single_examples_too(ask):
    plan, _, cohort, losses = ask(PricedChoice(FedEM(3), (0.7, 0.0, -0.2)), risks=RISKS)
    expected = (-losses - torch.tensor([0.7, 0.0, -0.2])).softmax(dim=1)
    q = torch.stack([each.example_weights for each in plan.trainings], dim=1)
    torch.testing.assert_close(q, expected.float())
    torch.testing.assert_close(plan.losses, cohort.means(losses))
