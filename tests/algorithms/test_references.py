"""Each algorithm against its paper's pseudocode, written plainly: one client after another, a network and autograd."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean
from torch import Tensor

import shoal
from plain_training import CLOSE, gradient, played
from shoal.algorithms import IFCA, CoordinateMedian, Ditto, FedAvg, FedOpt, FedProx, MultiKrum, Scaffold, TrimmedMean
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.core.settings import settings
from shoal.data import Federation
from shoal.engine import Engine, LocalSGD, Training
from shoal.models import Model

LOCAL = LocalSGD(steps=2, batch_size="all", learning_rate=0.1)
RATE, STEPS, ROUNDS = 0.1, 2, 3


def trained(model, federation, algorithm, **options):
    return played(model, federation, algorithm, LOCAL, **options)[0]


class Plain:
    """Gradients of a federation's clients by autograd, and plain local training on full batches."""

    def __init__(self, model: Model, federation: Federation) -> None:
        self.model, self.clients, self.count = model, federation.clients, len(federation)
        self.sizes = federation.clients.sizes.float()

    def gradient(self, theta: Tensor, client: int, term: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        mine = self.clients.indices_of(client)
        return gradient(self.model, theta, (self.clients.x[mine], self.clients.y[mine]), term=term)

    def local(self, start: Tensor, client: int, term: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        theta = start.clone()
        for _ in range(STEPS):
            theta = theta - RATE * self.gradient(theta, client, term)
        return theta

    def average(self, ends: list[Tensor]) -> Tensor:
        return (self.sizes[:, None] * torch.stack(ends)).sum(dim=0) / self.sizes.sum()


@pytest.fixture
def plain(model, build):
    return Plain(model, build())


def test_fedavg_is_its_loop_by_hand(plain, model, build):
    first, *_, last = trained(model, build(), FedAvg())
    x = first.models[0]
    for _ in range(ROUNDS):
        x = plain.average([plain.local(x, i) for i in range(plain.count)])
    torch.testing.assert_close(last.models[0], x, **CLOSE)


def test_fedprox_is_its_loop_by_hand(plain, model, build):
    first, *_, last = trained(model, build(), FedProx(mu=0.5))
    x = first.models[0]
    for _ in range(ROUNDS):
        start = x
        ends = [plain.local(x, i, lambda v, w=start: 0.25 * (v - w).square().sum()) for i in range(plain.count)]
        x = plain.average(ends)
    torch.testing.assert_close(last.models[0], x, **CLOSE)
    # Its pull is seen: without it the models end elsewhere.
    assert not torch.allclose(last.models, trained(model, build(), FedAvg())[-1].models, **CLOSE)


@pytest.mark.parametrize("server_learning_rate", [1.0, 0.5])
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_scaffold_is_its_loop_by_hand(plain, model, build, server_learning_rate, participation):
    states = trained(model, build(), Scaffold(server_learning_rate), participation=participation)
    x, c = states[0].models[0], torch.zeros(model.layout.size)
    own = torch.zeros(plain.count, model.layout.size)
    with Engine(model, threads=1) as engine:
        cohorts = Training(build(), Scaffold(), LOCAL, engine, Stream(5), participation=participation)
        sampled = [cohorts.cohort(number).tolist() for number in range(1, ROUNDS + 1)]
    for cohort in sampled:
        ends, changes = [], []
        for i in cohort:
            y = x.clone()
            for _ in range(STEPS):
                y = y - RATE * (plain.gradient(y, i) - own[i] + c)
            fresh = own[i] - c + (x - y) / (STEPS * RATE)
            ends.append(y - x)
            changes.append(fresh - own[i])
            own[i] = fresh
        x = x + server_learning_rate * torch.stack(ends).mean(dim=0)
        c = c + len(cohort) / plain.count * torch.stack(changes).mean(dim=0)
    torch.testing.assert_close(states[-1].models[0], x, **CLOSE)
    torch.testing.assert_close(states[-1].personal["scaffold"].tensor(), own, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(states[-1].server["scaffold.c"][0], c, rtol=1e-3, atol=1e-5)


def test_ditto_is_its_loop_by_hand(plain, model, build):
    states = trained(model, build(), Ditto(strength=0.7))
    x = states[0].models[0]
    personal = [x.clone() for _ in range(plain.count)]
    for _ in range(ROUNDS):
        start = x
        personal = [plain.local(v, i, lambda v, w=start: 0.35 * (v - w).square().sum()) for i, v in enumerate(personal)]
        x = plain.average([plain.local(start, i) for i in range(plain.count)])
    torch.testing.assert_close(states[-1].models[0], x, **CLOSE)
    torch.testing.assert_close(states[-1].personal["ditto"].tensor(), torch.stack(personal), **CLOSE)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "yogi"])
def test_fedopt_is_its_loop_by_hand(plain, model, build, optimizer):
    rate, beta1, beta2, tau = 0.3, 0.8, 0.95, 0.01
    first, *_, last = trained(model, build(), FedOpt(FedAvg(), optimizer, rate, beta1, beta2, tau))
    x = first.models[0].double()
    m, v = torch.zeros_like(x), torch.full_like(x, tau**2)
    for _ in range(ROUNDS):
        delta = plain.average([plain.local(x.float(), i) for i in range(plain.count)]).double() - x
        if optimizer == "sgd":
            m = beta1 * m + delta
            x = x + rate * m
            continue
        m = beta1 * m + (1 - beta1) * delta
        d2 = delta**2
        v = beta2 * v + (1 - beta2) * d2 if optimizer == "adam" else v - (1 - beta2) * d2 * torch.sign(v - d2)
        x = x + rate * m / (v.sqrt() + tau)
    torch.testing.assert_close(last.models[0], x.float(), rtol=1e-3, atol=1e-5)


def test_fedopt_keeps_untrained_models_and_their_moments(model, build):
    @settings
    class First:
        """IFCA in which everybody trains the first model from round 2 on."""

        def plan(self, state, cohort):
            assignment = torch.arange(len(cohort)) % 2 if state.round == 0 else torch.zeros(len(cohort)).long()
            return IFCA(2).plan_of(assignment, None, state, cohort)

        def __getattr__(self, name):
            return getattr(IFCA(2), name)

    _, one, two, _ = trained(model, build(), FedOpt(First(), "adam", 0.1))
    assert torch.equal(one.models[1], two.models[1])
    assert not torch.equal(one.models[0], two.models[0])
    assert torch.equal(one.server["fedopt.m"][1], two.server["fedopt.m"][1])


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
    np.testing.assert_allclose(CoordinateMedian().merge(updates), np.median(rows, axis=0))
    np.testing.assert_allclose(TrimmedMean(trim=0.3).merge(updates), trim_mean(rows, 0.3, axis=0))
    liars = min(2, max(0, (count - 3) // 2))
    expected = krum_mean(rows, liars, count - liars) if count > 2 else rows.mean(axis=0)
    np.testing.assert_allclose(MultiKrum(byzantine=2).merge(updates), expected)
    if count > 2:
        np.testing.assert_allclose(MultiKrum(byzantine=2, selected=1).merge(updates), krum_mean(rows, liars, 1))


@pytest.mark.parametrize("rule", [CoordinateMedian(), TrimmedMean(trim=0.25), MultiKrum(byzantine=3)])
def test_three_of_twelve_that_send_anything_do_not_carry_a_model_further_than_the_honest_ones_reach(rule):
    honest = torch.from_numpy(np.random.default_rng(0).normal(size=(9, 4)))
    for lie in (1e9 * torch.ones(3, 4), -1e9 * torch.ones(3, 4), torch.tensor([[1e9], [-1e9], [1e9]]).expand(3, 4)):
        merged = rule.merge(torch.cat([lie.double(), honest]))
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
        expected = before.models[k].double() + algorithm.merge(mine)
        torch.testing.assert_close(after.models[k].double(), expected, atol=1e-6, rtol=0)
    plain = play(IFCA(2), 1)[0][-1]
    assert not torch.equal(plain.models, after.models)
    assert torch.equal(plain.assignment, after.assignment)


def test_noise_in_the_sum_is_refused(play):
    local = LocalSGD(steps=1, batch_size="all")
    noise = shoal.DPSGD(noise_multiplier=1.0, noise="sum", min_clients=2)
    with pytest.raises(InputError, match="each client sends one update"):
        play(CoordinateMedian(FedAvg()), 1, local=local, training={"defenses": (noise,)})
