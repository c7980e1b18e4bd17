"""Prices on models: who goes where, what is recorded, and what is left as it is."""

from dataclasses import replace

import pytest
import torch

from shoal.algorithms import IFCA, IFCAMIR, FedAvg, PricedChoice
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Preferences
from shoal.engine import Engine, LocalSGD, Training

LOSSES = torch.tensor([[1.0, 1.2], [1.0, 1.05], [1.3, 1.0]] * 2, dtype=torch.float64)


@pytest.fixture
def ask(mlp, build):
    """An algorithm's plan and its choices at the end, for clients with `LOSSES`."""

    def asked(algorithm, beta=0.0, risks=(0.5, 0.5), **directives):
        weight = torch.full((6,), beta, dtype=torch.float64)
        with Engine(mlp) as engine:
            training = Training(build(), algorithm, LocalSGD(), engine, Stream(5))
            state = replace(training.start(), risks=torch.tensor(risks, dtype=torch.float64))
            directives = {name: torch.tensor(each, dtype=torch.float64) for name, each in directives.items()}
            state, cohort = replace(state, directives=directives), training.cohort_of(state, torch.arange(6))
            cohort = replace(cohort, preferences=Preferences(weight, weight), scores=lambda *_: LOSSES)
            return algorithm.plan(state, cohort), algorithm.deployed(state, cohort)

    return asked


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
        plan, deployed = ask(algorithm, **directives)
        assert plan.assignment.tolist() == deployed.model.tolist() == choice * 2
        assert plan.trainings[0].init_index.tolist() == choice * 2
        assert plan.losses is LOSSES, "what is recorded has no price"


def test_ifca_mir_weighs_the_price_as_it_weighs_the_loss(ask):
    # 0.5 * (loss + price) + 0.5 * risk: the first client moves when the price is above 0.2 - 0.1.
    for price, choice in ((0.09, 0), (0.11, 1)):
        plan, _ = ask(PricedChoice(IFCAMIR(), (price, 0.0)), beta=0.5, risks=(0.7, 0.6))
        assert plan.assignment[0] == choice


@pytest.mark.parametrize("base", [IFCAMIR(), IFCA(2, choose_by="batch")], ids=repr)
def test_no_price_is_the_base_bit_for_bit(play, base):
    plain, reports = play(base, risks=(0.7, 0.6))
    for algorithm, directives in (
        (PricedChoice(base), {}),
        (PricedChoice(base, (0.0, 0.0)), {}),
        (PricedChoice(base, (0.0, 5.0)), {"price": (0.0, 0.0)}),
    ):
        states, own = play(algorithm, risks=(0.7, 0.6), **directives)
        assert torch.equal(states[-1].models, plain[-1].models)
        assert all(torch.equal(one.losses, other.losses) for one, other in zip(own, reports, strict=True))
    # Seen, since a price changes it.
    assert not torch.equal(play(PricedChoice(base, (0.0, 5.0)), risks=(0.7, 0.6))[0][-1].models, plain[-1].models)


def test_who_does_not_choose_pays_nothing(play):
    one, other = (play(each)[0][-1] for each in (PricedChoice(FedAvg(), (3.0,)), FedAvg()))
    assert torch.equal(one.models, other.models)


def test_other_prices_are_one_sentence(play):
    with pytest.raises(InputError, match=r"^'prices' must be one number for each of 2 models, or left out; got 3$"):
        play(PricedChoice(IFCA(2), (0.0, 0.0, 0.1)))
    with pytest.raises(InputError, match=r"^'prices' must be a finite number; got inf$"):
        PricedChoice(IFCA(2), (float("inf"), 0.0))
    for wrong in ((1.0,), (float("nan"), 0.0)):
        with pytest.raises(InputError, match=r"^the directive 'price' must be a finite number of nats for each of 2 "):
            play(PricedChoice(IFCA(2)), price=wrong)
