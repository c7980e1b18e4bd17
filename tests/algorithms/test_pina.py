"""PINA: sketches and averages against plain PyTorch client by client, and how normal a client is against scipy."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

import shoal
from relabelled import FOUR, LINEAR, TWO, ari, relabelled, trained
from shoal.algorithms.private.pina import normality
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.core.update_sketch import UpdateSketch
from shoal.defenses import DPSGD, accounting
from shoal.engine import Engine, LocalSGD
from shoal.models import cross_entropy

QUIET = shoal.PINA(2, 8, max_norm=0.5, noise_multiplier=0.0)


def sketches(algorithm: shoal.PINA, federation: Any, model: shoal.Model = LINEAR, seed: int = 0) -> Tensor:
    with Engine(model, threads=1) as engine:
        return algorithm.sketches(engine, model.init(Stream(1)), federation, Stream(seed))


def test_a_sketch_is_the_mean_of_clipped_projected_gradients():
    federation, d = relabelled(TWO, count=9), 8
    matrix = UpdateSketch.draw(LINEAR.parameters, d, Stream(0)("sketch")).sketched(torch.eye(LINEAR.parameters)).T
    assert (matrix.abs().sum(dim=0) == 1).all()
    network = LINEAR.network()
    network.load_state_dict(LINEAR.state_dict(LINEAR.init(Stream(1))))
    for i, found in enumerate(sketches(QUIET, federation)):
        mine = federation.clients.owned(i)
        total = torch.zeros(d)
        for x, y in zip(federation.clients.x[mine], federation.clients.y[mine], strict=True):
            loss = cross_entropy(network(x[None]), y[None]).sum()
            gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])
            total += matrix @ gradient * min(1.0, 0.5 / float((matrix @ gradient).norm()))
        torch.testing.assert_close(found.float(), total / 9, atol=1e-6, rtol=0)


def test_one_record_moves_what_is_sent_by_its_bound_and_the_noise_is_as_stated():
    federation = relabelled(TWO, count=9)
    x, y = federation.clients.x.clone(), federation.clients.y.clone()
    x[federation.clients.owned(2)[4]] *= 1e4
    other = replace(federation, clients=replace(federation.clients, x=x, y=y))
    moved = (sketches(QUIET, other) - sketches(QUIET, federation)).norm(dim=1) * 9
    assert float(moved[2]) <= 2 * 0.5 + 1e-6
    assert float(moved[2]) > 0.1
    assert moved[[0, 1, 3, 4, 5]].eq(0).all()
    many = [sketches(replace(QUIET, noise_multiplier=3.0), federation, seed=seed) for seed in range(40)]
    still = [sketches(QUIET, federation, seed=seed) for seed in range(40)]
    noise = torch.stack(many) - torch.stack(still)
    assert float(noise.std()) == pytest.approx(3.0 * 0.5 / 9, rel=0.05)
    assert torch.unique(noise).numel() > 1900, "every client draws noise of its own, and each run"


def test_normality_is_scipys_tail_of_chi_squared():
    draw = torch.Generator().manual_seed(3)
    points = torch.randn(21, 5, generator=draw)
    points[20] += 9
    cluster = torch.zeros(21, dtype=torch.int64)
    found = normality(points, cluster)
    squares = (points - points.median(dim=0).values).double().square().sum(dim=1)
    scale = float(squares.median()) / stats.chi2.ppf(0.5, 5)
    expected = torch.from_numpy(stats.chi2(5).sf(squares.numpy() / scale)).clamp(min=1e-12)
    torch.testing.assert_close(found, expected)
    assert int(found.argmin()) == 20
    assert float(found[20]) < 1e-6
    assert normality(torch.ones(3, 2), torch.tensor([0, 0, 1])).tolist() == [1, 1, 1]


@pytest.mark.parametrize("weighting", ["normality", "examples"])
def test_every_cluster_is_the_average_of_its_clients_by_normality(weighting):
    federation, algorithm = relabelled(FOUR), replace(QUIET, clusters=4, noise_multiplier=0.05, weighting=weighting)
    states = trained(federation, algorithm, 2)
    assert ari(states[-1], FOUR) == 1
    assert len(torch.unique(states[0].models, dim=0)) == 1
    cluster = states[0].clients["pina.cluster"]
    weight = states[0].clients["pina.normality"]
    assert len(weight.unique()) > 4
    for before, after in zip(states, states[1:], strict=False):  # noqa: RUF007 - of three states
        for k in range(4):
            mine = torch.nonzero(cluster == k).flatten().tolist()
            share = weight[mine] if weighting == "normality" else torch.ones(len(mine), dtype=torch.float64)
            total = torch.zeros(LINEAR.layout.size, dtype=torch.float64)
            for i, part in zip(mine, (share / share.sum()).tolist(), strict=True):
                total += part * end_of(before.models[k], federation, i)
            torch.testing.assert_close(after.models[k].double(), total, atol=1e-6, rtol=0)


def end_of(row: Tensor, federation: Any, i: int) -> Tensor:
    """Where a client ends by five full steps of 0.5."""
    network = LINEAR.network()
    network.load_state_dict(LINEAR.state_dict(row))
    optimizer = torch.optim.SGD(network.parameters(), 0.5)
    x, y = (part[federation.clients.owned(i)] for part in (federation.clients.x, federation.clients.y))
    for _ in range(5):
        optimizer.zero_grad()
        cross_entropy(network(x), y).mean().backward()
        optimizer.step()
    return LINEAR.layout.pack(dict(network.named_parameters())).double()


def test_epsilon_counts_the_sketch_beside_the_steps():
    local = LocalSGD(steps=2, batch_size="all", gradient_privacy=DPSGD(1.0, 1.5))
    algorithm = replace(QUIET, noise_multiplier=2.5)
    result = shoal.simulate(relabelled(TWO), LINEAR, algorithm, local, rounds=3)
    expected = accounting.composed([(1.5, 1.0, 6), (2.5, 1.0, 1)], DPSGD().delta)
    assert result.summary.overall["epsilon"] == pytest.approx(expected)
    assert result.summary.overall["epsilon.choice"] == pytest.approx(accounting.gaussian_epsilon(0.4, DPSGD().delta))
    without = shoal.simulate(relabelled(TWO), LINEAR, QUIET, local, rounds=1)
    assert "epsilon" not in without.summary.overall, "no noise, no guarantee"


def test_batch_norm_and_too_many_clusters_are_refused():
    normed = shoal.Model(lambda: nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4)))
    federation = relabelled(TWO)
    for model, algorithm, sentence in (
        (normed, QUIET, "mixes the examples of a batch"),
        (LINEAR, replace(QUIET, clusters=7), "at most the federation's 6 clients; got 7"),
    ):
        with Engine(model, threads=1) as engine, pytest.raises(InputError, match=sentence):
            algorithm.init(engine, federation, LocalSGD(), Stream(0))
