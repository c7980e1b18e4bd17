"""Robust merging: each rule is its plain reference, and its base where nobody lies and all are alike."""

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean

import shoal
from shoal.algorithms import IFCA, CoordinateMedian, FedAvg, MultiKrum, TrimmedMean
from shoal.core.errors import InputError
from shoal.engine import LocalSGD

RULES = [CoordinateMedian, TrimmedMean, MultiKrum]


def krum_mean(rows: np.ndarray, byzantine: int, selected: int) -> np.ndarray:
    """Multi-Krum as the paper states it, one client and one distance after the other."""
    count = len(rows)
    scores = []
    for i in range(count):
        distances = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(count) if j != i)
        scores.append(sum(distances[: count - byzantine - 2]))
    return np.mean([rows[i] for i in np.argsort(scores, kind="stable")[:selected]], axis=0)


@pytest.mark.parametrize("count", [1, 2, 3, 6, 7, 12])
def test_each_rule_is_its_reference(count):
    rows = np.random.default_rng(count).normal(size=(count, 5)) ** 3
    updates = torch.from_numpy(rows)
    np.testing.assert_allclose(CoordinateMedian().merged(updates), np.median(rows, axis=0))
    np.testing.assert_allclose(TrimmedMean(trim=0.3).merged(updates), trim_mean(rows, 0.3, axis=0))
    liars = min(2, max(0, (count - 3) // 2))
    expected = krum_mean(rows, liars, count - liars) if count > 2 else rows.mean(axis=0)
    np.testing.assert_allclose(MultiKrum(byzantine=2).merged(updates), expected)
    if count > 2:
        np.testing.assert_allclose(MultiKrum(byzantine=2, selected=1).merged(updates), krum_mean(rows, liars, 1))


@pytest.mark.parametrize("rule", [CoordinateMedian(), TrimmedMean(trim=0.25), MultiKrum(byzantine=3)])
def test_three_of_twelve_that_send_anything_do_not_carry_a_model_further_than_the_honest_ones_reach(rule):
    honest = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4)))
    for lie in (1e9 * torch.ones(3, 4), -1e9 * torch.ones(3, 4), torch.tensor([[1e9], [-1e9], [1e9]]).expand(3, 4)):
        merged = rule.merged(torch.cat([lie.double(), honest]))
        assert (merged >= honest.min(dim=0).values).all()
        assert (merged <= honest.max(dim=0).values).all()
        assert float(torch.cat([lie.double(), honest]).mean(dim=0).abs().min()) > 1e7


@pytest.mark.parametrize("rule", RULES)
def test_the_model_moves_by_the_statistic_of_its_own_clusters_updates(play, rule):
    algorithm = rule(IFCA(2))
    (before, after), (report,) = play(algorithm, 1, training={"record_every": 1})
    sent = report.updates
    assert sent is not None
    for k in range(2):
        mine = sent.updates[sent.assignment == k].double()
        expected = before.models[k].double() + algorithm.merged(mine)
        torch.testing.assert_close(after.models[k].double(), expected, atol=1e-6, rtol=0)
    plain = play(IFCA(2), 1)[0][-1]
    assert not torch.equal(plain.models, after.models)
    assert torch.equal(plain.assignment, after.assignment)


def test_noise_in_the_sum_is_refused(play):
    local = LocalSGD(steps=1, batch_size="all")
    noise = shoal.DPSGD(noise_multiplier=1.0, noise="sum", min_clients=2)
    with pytest.raises(InputError, match="needs clients that send one update, which is averaged"):
        play(CoordinateMedian(FedAvg()), 1, local=local, training={"defenses": (noise,)})
