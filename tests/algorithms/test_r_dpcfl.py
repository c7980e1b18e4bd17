"""R-DPCFL: the first round, the mixture, the phases after it, and what they spend of privacy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm
from sklearn.decomposition import PCA

from shoal.algorithms import RDPCFL
from shoal.algorithms.private.r_dpcfl import mixture, principal_components
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.defenses import DPSGD, accounting
from shoal.engine import ClientTrainings, LocalSGD


def two_groups(distance, clients=20, parameters=300):
    draw = torch.Generator().manual_seed(0)
    group = (torch.arange(clients) >= 3).long()
    axis = torch.nn.functional.normalize(torch.randn(parameters, generator=draw), dim=0)
    return group, group[:, None] * distance * axis + torch.randn(clients, parameters, generator=draw) / 10


def test_principal_components_are_scikit_learn_s_but_for_scale_and_sign():
    _, updates = two_groups(1.0)
    found, expected = principal_components(updates).numpy(), PCA(2, svd_solver="full").fit_transform(updates.double())
    assert found.min(axis=0).tolist() == [0, 0]
    assert found.max(axis=0).tolist() == [1, 1]
    for j in range(2):
        assert abs(np.corrcoef(found[:, j], expected[:, j])[0, 1]) == pytest.approx(1, abs=1e-9)
    assert principal_components(torch.ones(3, 5)).tolist() == [[0, 0]] * 3


def test_a_minority_of_three_in_twenty_is_found_and_confidence_falls_with_the_distance():
    group, far = two_groups(9.0)
    probabilities, overlap = mixture(principal_components(far), 2, Stream(1))
    found = probabilities.argmax(dim=1)
    assert found.tolist() in (group.tolist(), (1 - group).tolist())
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(20).double())
    _, near = two_groups(0.0)
    assert overlap < 0.1 < mixture(principal_components(near), 2, Stream(1))[1]
    assert mixture(principal_components(far), 1, Stream(1))[1] == 0


def test_overlap_is_the_mass_of_a_gaussian_beyond_half_the_distance():
    draw = torch.Generator().manual_seed(2)
    points = torch.randn(4000, 2, generator=draw, dtype=torch.float64) * 0.1
    points[2000:, 0] += 0.5
    # Two sides beyond s = 0.25 / 0.1 standard deviations.
    assert mixture(points, 2, Stream(0))[1] == pytest.approx(2 * norm.sf(2.5), rel=0.2)


def test_the_first_round_is_one_model_on_full_batches(play):
    (_, after), (report,) = play(RDPCFL(2), rounds=1, training={"record_every": 1})
    (training,) = report.plan.trainings
    assert training.local.batch_size == "all"
    assert report.assignment.tolist() == [0] * 6
    # Each model begins at the first plus the mean update of those who were drawn into it.
    updates = report.updates
    for k in range(2):
        mine = after.assignment == k if bool((after.assignment == k).any()) else torch.ones(6, dtype=torch.bool)
        torch.testing.assert_close(after.models[k], updates.models[0] + updates.updates[mine].mean(dim=0))
        assert torch.equal(after.trained[:, k], mine.long())


def settled(states, **server):
    """The state with another length of the soft phase, or other probabilities."""
    state = states[-1]
    changed = {f"r-dpcfl.{name}": torch.tensor([value]) for name, value in server.items()}
    return replace(state, server={**state.server, **changed})


def test_phases_follow_one_another(play):
    algorithm = RDPCFL(2, soft_rounds=3, loss_rounds=2)
    states, reports = play(algorithm, rounds=7)
    soft = int(states[1].server["r-dpcfl.soft_rounds"])
    assert 0 <= soft <= 3
    first_by_loss = 1 + max(1, soft)
    by_loss = [number for number, report in enumerate(reports, start=1) if report.losses is not None]
    assert by_loss == [first_by_loss, first_by_loss + 1]
    for report in reports[first_by_loss - 1 : first_by_loss + 1]:
        assert torch.equal(report.assignment, report.losses.argmin(dim=1))
    kept = reports[first_by_loss].assignment
    assert all(torch.equal(report.assignment, kept) for report in reports[first_by_loss + 1 :])


def test_a_draw_follows_the_probabilities_and_not_the_data(play):
    algorithm = RDPCFL(2, soft_rounds=50)
    states, _ = play(algorithm, rounds=1)
    sure = torch.tensor([[1.0, 0.0], [0.0, 1.0]] * 3, dtype=torch.float64)
    state = settled(states, soft_rounds=50)
    state = replace(state, clients={**state.clients, "r-dpcfl.probabilities": sure})
    cohort = _Silent(round=2, clients=torch.arange(6), stream=Stream(0))
    assert algorithm.plan(state, cohort).assignment.tolist() == [0, 1] * 3
    even = replace(state, clients={**state.clients, "r-dpcfl.probabilities": torch.full((6, 2), 0.5).double()})
    drawn = torch.stack(
        [algorithm.plan(even, _Silent(2, torch.arange(6), Stream(seed))).assignment for seed in range(200)]
    )
    assert float(drawn.double().mean()) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(1200))


class _Silent:
    """A cohort that computes no losses."""

    def __init__(self, round, clients, stream):  # noqa: A002
        self.round, self.clients, self.stream, self.sizes = round, clients, stream, torch.ones(len(clients))

    def __len__(self):
        return len(self.clients)

    def losses(self, models, examples="all"):
        raise AssertionError("nobody's data is asked in this phase")


def test_late_clients_start_uniform_then_choose_by_loss(play):
    states, reports = play(RDPCFL(2, 1, 1), rounds=6, training={"participation": 0.5})
    absent = [i for i in range(6) if i not in reports[0].cohort.tolist()]
    assert states[1].clients["r-dpcfl.probabilities"][absent].tolist() == [[0.5, 0.5]] * 3
    chosen = states[0].clients["r-dpcfl.choice"].clone()
    for report in reports[1:]:
        before = chosen[report.cohort]
        if report.losses is not None and report is not reports[1]:
            fresh = before < 0
            assert torch.equal(report.assignment[fresh], report.losses.argmin(dim=1)[fresh])
            assert torch.equal(report.assignment[~fresh], before[~fresh])
        chosen[report.cohort] = report.assignment
    assert torch.equal(states[-1].clients["r-dpcfl.choice"], chosen)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
def test_epsilon_counts_the_full_batches_of_the_first_round(build, accountant):
    federation, rule = build((9, 12, 7)), DPSGD(1.0, 1.0, accountant=accountant)
    cohorts = [torch.empty(0, dtype=torch.int64), torch.tensor([0, 1]), torch.tensor([1]), torch.arange(3)]
    local = LocalSGD(steps=5, batch_size=4)
    found = accounting.PrivateTrainings(federation, cohorts, RDPCFL().client_trainings(local), rule).epsilons()
    later = [1, 2, 1]
    for i, (size, rounds) in enumerate(zip(federation.clients.sizes.tolist(), later, strict=True)):
        full = [(1.0, 1.0, 5)] if i in (0, 1) else []
        spent = [(1.0, 4 / size, rounds * 5), *full]
        assert found[i] == pytest.approx(accounting.composed_epsilon(spent, 1e-5, accountant), rel=1e-9)
    plain = accounting.PrivateTrainings(federation, cohorts, ClientTrainings((local,)), rule).epsilons()
    assert bool((found[:2] > plain[:2]).all())
    assert torch.equal(found[2:], plain[2:])


def test_a_prv_accountant_that_cannot_count_it_is_refused_before_the_run():
    sizes, rule = torch.full((3,), 4000), DPSGD(1.0, 0.1, accountant="prv")
    local = LocalSGD(steps=150, batch_size=4)
    accounting.check_computable(sizes, 1, ClientTrainings((local,)), rule)
    with pytest.raises(InputError, match="'accountant' must be"):
        accounting.check_computable(sizes, 1, RDPCFL().client_trainings(local), rule)
