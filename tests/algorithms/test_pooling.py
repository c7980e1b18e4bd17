"""Pooling against its formula, written with numpy."""

import numpy as np
import pytest
import torch

from shoal.algorithms import IFCA, EarlyStopping, FedAvg, Pooling
from shoal.algorithms.wrappers.pooling import pooled
from shoal.core.errors import InputError


def by_hand(models, rho, counts):
    mean = sum(n * theta for n, theta in zip(counts, models, strict=True)) / sum(counts)
    return np.stack([(1 - r) * theta + r * mean for r, theta in zip(rho, models, strict=True)])


@pytest.mark.parametrize("directive", [None, (1.0, 0.25, 0.0)])
def test_models_move_towards_the_mean_by_clients(play, directive):
    steered = {} if directive is None else {"pooling": directive}
    (first, after), (report,) = play(Pooling(IFCA(3), 0.4), rounds=1, **steered)
    (_, plain), _ = play(IFCA(3), rounds=1)
    counts = np.bincount(report.assignment, minlength=3)
    assert len(set(counts.tolist())) > 1, "the weights of the mean must matter"
    rho = 0.4 * np.array(directive or (1, 1, 1))
    expected = by_hand(plain.models.double().numpy(), rho, counts)
    np.testing.assert_allclose(after.models.numpy(), expected, rtol=1e-6, atol=1e-8)
    assert not torch.equal(after.models, first.models)


def test_all_of_it_is_fedavg_where_clients_begin_and_count_alike(play):
    """The mean is weighted so that every client counts once."""
    (_, begun, *_), _ = play(Pooling(IFCA(2), 1.0), rounds=1)
    assert torch.equal(begun.models[0], begun.models[1])
    # From the second round on all clusters train the same model.
    (*_, pooled_last), _ = play(Pooling(IFCA(2), 1.0), rounds=2)
    from_one = Beginning(begun.models[:1])
    (*_, average), _ = play(from_one, rounds=2)
    torch.testing.assert_close(pooled_last.models[0], average.models[0], rtol=1e-5, atol=1e-7)


class Beginning:
    """FedAvg with equal weights whose first round does nothing but give the one model a value."""

    def __init__(self, model):
        self.model, self.base = model, FedAvg("equal")

    def server_update(self, state, cohort, plan, aggregate):
        after = self.base.server_update(state, cohort, plan, aggregate)
        return after if cohort.round > 1 else type(after)(after.round, self.model, after.risks, after.assignment)

    def __getattr__(self, name):
        return getattr(self.base, name)


def test_a_model_that_nobody_trained_has_no_weight(play):
    """Its directive draws it to the others, and it draws nobody to itself."""
    (_, after), _ = play(Pooling(EarlyStopping(IFCA(2)), 1.0), rounds=1, stop=(0.0, 1.0), pooling=(0.0, 1.0))
    (_, plain), _ = play(IFCA(2), rounds=1)
    assert torch.equal(after.models[0], plain.models[0])
    assert torch.equal(after.models[1], plain.models[0])


def test_where_nobody_trained_or_there_is_one_model_nothing_changes(play):
    models = torch.rand(2, 3)
    whole = torch.ones(2, 1, dtype=torch.float64)
    assert pooled(models, whole, torch.zeros(2).double()) is models
    assert pooled(models[:1], whole[:1], torch.ones(1).double()).tolist() == models[:1].tolist()
    one, base = (play(each)[0][-1] for each in (Pooling(FedAvg(), 1.0), FedAvg()))
    assert torch.equal(one.models, base.models)


def test_a_model_that_is_not_drawn_does_not_notice_one_that_diverged():
    models = torch.tensor([[1.0, -2.0], [torch.inf, torch.nan]])
    after = pooled(models, torch.tensor([[0.0], [0.5]]).double(), torch.ones(2).double())
    assert torch.equal(after[0], models[0])


def test_members_stay_those_who_trained(play):
    one, base = (play(each)[0][-1] for each in (Pooling(IFCA(2), 0.01), IFCA(2)))
    assert torch.equal(one.trained, base.trained)


@pytest.mark.parametrize("share", [-0.1, 1.1, "much"])
def test_other_shares_are_one_sentence(share):
    with pytest.raises(InputError, match=r"^'share' must be [^\n]*; got [^\n]*$"):
        Pooling(share=share)
