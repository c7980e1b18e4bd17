"""Epsilon against Opacus' own accountants, and who spent what."""

import math
import warnings
from dataclasses import replace

import pytest
import torch

from shoal.core.errors import InputError
from shoal.defenses import DPSGD, accounting
from shoal.engine import ClientTrainings, LocalSGD
from shoal.property import PropertySchedule

LOCAL = LocalSGD(epochs=2, batch_size=4)
ONCE = ClientTrainings((LOCAL,))


def opacus(name, history, delta):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants import create_accountant  # noqa: PLC0415

        accountant = create_accountant(name)
        for sigma, share, steps in history:
            for _ in range(steps):
                accountant.step(noise_multiplier=sigma, sample_rate=share)
        return accountant.get_epsilon(delta)


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize(
    ("history", "delta"),
    [
        ([(1.0, 0.1, 30)], 1e-5),
        ([(0.8, 0.05, 40), (0.7, 0.2, 3)], 1e-4),
        ([(2.0, 1.0, 4)], 1e-6),
        ([(0.5, 0.02, 7)], 1e-5),
    ],
)
def test_epsilon_is_opacus_s(accountant, history, delta):
    expected = opacus(accountant, history, delta)
    assert accounting.composed_epsilon(history, delta, accountant) == pytest.approx(expected, abs=1e-6)
    assert expected > 0


def test_epsilon_is_infinite_without_noise_and_0_without_steps():
    for accountant in ("rdp", "prv"):
        assert accounting.composed_epsilon([(0.0, 0.1, 3)], 1e-5, accountant) == math.inf
        assert accounting.composed_epsilon([], 1e-5, accountant) == 0
        assert accounting.composed_epsilon([(1.0, 0.1, 0)], 1e-5, accountant) == 0


def test_each_client_by_its_size_and_its_rounds(monkeypatch):
    asked = []
    monkeypatch.setattr(accounting, "composed_epsilon", lambda *given: asked.append(given) or float(len(asked)))
    sizes, attended = torch.tensor([9, 12, 9, 3, 9]), torch.tensor([5, 5, 5, 2, 0])
    rule = DPSGD(1.0, 0.9, 1e-4, "prv")
    assert accounting.client_epsilons([(LOCAL, sizes, attended)], rule).tolist() == [1, 2, 1, 3, 4]
    assert [given[0] for given in asked] == [[(0.9, 4 / 9, 30)], [(0.9, 4 / 12, 30)], [(0.9, 1.0, 4)], []]
    assert {given[1:] for given in asked} == {(1e-4, "prv")}


def test_a_federation_s_clients_spend_in_the_rounds_they_are_in(build):
    federation, rule = build(), DPSGD(1.0, 1.0)
    cohorts = [torch.tensor([0, 1]), torch.tensor([1, 3]), torch.empty(0, dtype=torch.int64), torch.tensor([1])]
    found = accounting.PrivateTrainings(federation, cohorts, ONCE, rule).epsilons()
    sizes = federation.clients.sizes.tolist()
    rounds = [1, 3, 0, 1, 0, 0]
    for i, (size, count) in enumerate(zip(sizes, rounds, strict=True)):
        assert found[i] == accounting.composed_epsilon([(1.0, 4 / size, count * LOCAL.steps_of(size))], 1e-5)


def with_copies(federation, client, copies):
    x, y = federation.clients.x.clone(), federation.clients.y.clone()
    rows = federation.clients.indices_of(client)[:copies]
    x[rows], y[rows] = x[rows[0]].clone(), y[rows[0]].clone()
    return replace(federation, clients=replace(federation.clients, x=x, y=y))


def test_a_client_s_copies_of_a_record_are_one_record(build):
    everyone, rule = [torch.arange(6)] * 2, DPSGD(1.0, 3.0)
    plain, found = (
        accounting.PrivateTrainings(each, everyone, ONCE, rule, choice_noise=5.0).epsilons()
        for each in (build(), with_copies(build(), 1, 3))
    )
    others = [0, 2, 3, 4, 5]
    assert torch.equal(found[others], plain[others])
    assert found[1] == accounting.composed_epsilon([(1.0, 1 - (1 - 4 / 12) ** 3, 12), (5 / 3, 1.0, 1)], rule.delta)
    summed = DPSGD(1.0, 3.0, noise="sum", min_clients=2)
    rounds, copies = torch.tensor([4, 4]), torch.tensor([1, 3])
    for values in accounting.epsilons_by_view(summed, rounds, 6.0, copies=copies).values():
        assert values[0] < values[1]
    outsider = accounting.epsilons_by_view(summed, rounds, 6.0, copies=copies)["outsider"]
    assert float(outsider[1]) == pytest.approx(accounting.gaussian_epsilon(3 * math.sqrt(4 / 9 + 1 / 36), 1e-5))


def test_rows_that_differ_in_their_label_are_no_copies(build):
    federation, rule = build(), DPSGD(1.0, 3.0)
    copied = with_copies(federation, 1, 2)
    y = copied.clients.y.clone()
    y[copied.clients.indices_of(1)[0]] = (y[copied.clients.indices_of(1)[1]] + 1) % 3
    different = replace(copied, clients=replace(copied.clients, y=y))
    found, plain = (
        accounting.PrivateTrainings(each, [torch.arange(6)], ONCE, rule).epsilons() for each in (different, federation)
    )
    assert torch.equal(found, plain)


@pytest.mark.parametrize(("rate", "copies", "order"), [(0.1, 5, 4), (0.3, 2, 16), (1.0, 3, 3), (0.02, 30, 2)])
def test_the_step_of_copies_bounds_the_mixture_of_shifts_by_those_in_the_batch(rate, copies, order):
    """E[(p / q)^order] for q = N(0, sigma^2) and p = N(J, sigma^2), J binomial, by integration."""
    from opacus.accountants.analysis.rdp import compute_rdp  # noqa: PLC0415

    sigma = 2.0 * copies

    def step(of_step):
        noise, shared = of_step
        return float(compute_rdp(q=shared, noise_multiplier=noise, steps=1, orders=float(order)))

    x = torch.linspace(-20 * sigma, order * copies + 20 * sigma, 200_001, dtype=torch.float64)
    shifts = torch.arange(copies + 1, dtype=torch.float64)[:, None]
    weights = torch.distributions.Binomial(copies, torch.tensor(rate, dtype=torch.float64)).log_prob(shifts)
    ratio = torch.logsumexp(weights + (shifts * x - shifts**2 / 2) / sigma**2, dim=0)
    density = -((x / sigma) ** 2) / 2 - math.log(sigma * math.sqrt(2 * math.pi))
    exact = float(torch.logsumexp(order * ratio + density, dim=0) + math.log(float(x[1] - x[0]))) / (order - 1)
    assert exact <= step(accounting.of_copies(sigma, rate, copies)) * (1 + 1e-9)
    assert exact > 1.5 * step((sigma, rate))


def test_a_victim_that_takes_turns_spends_what_the_more_used_part_of_its_examples_does(build):
    federation, rule = build(), DPSGD(1.0, 1.0)
    everyone = [torch.arange(6)] * 7
    plain = accounting.PrivateTrainings(federation, everyone, ONCE, rule).epsilons()
    holds = torch.zeros(len(federation.clients.y), dtype=torch.bool)
    holds[federation.clients.indices_of(2)[:2]] = True  # Two of seven hold the property.
    schedule = PropertySchedule(
        holds, torch.zeros(0, dtype=torch.bool), int(federation.ids[2]), int(federation.ids[0]), period=2
    )
    found = accounting.PrivateTrainings(replace(federation, schedule=schedule), everyone, ONCE, rule).epsilons()
    # In rounds 2, 4 and 6 the two, both in every step; in the four others the five, in two steps a pass.
    with_it = accounting.composed_epsilon([(1.0, 1.0, 3 * 2)], 1e-5)
    without = accounting.composed_epsilon([(1.0, 4 / 5, 4 * 4)], 1e-5)
    assert found[2] == max(with_it, without)
    assert with_it != without
    rest = torch.tensor([0, 1, 3, 4, 5])
    assert torch.equal(found[rest], plain[rest])


def test_nobody_and_steps_without_noise_need_no_memory():
    local = ClientTrainings((LocalSGD(steps=1, batch_size=32),))
    for sizes, noise in (([], 0.2), ([320, 3200], 0.0)):
        accounting.check_computable(torch.tensor(sizes), 10**6, local, DPSGD(1.0, noise, accountant="prv"))


def test_more_than_prv_can_compute_is_refused_before_the_run():
    sizes, local = torch.tensor([320, 3200]), ClientTrainings((LocalSGD(steps=1, batch_size=32),))
    with pytest.raises(InputError, match="'accountant' must be"):
        accounting.check_computable(sizes, 5000, local, DPSGD(1.0, 0.2, accountant="prv"))
    accounting.check_computable(sizes, 5000, local, DPSGD(1.0, 0.2))
    accounting.check_computable(sizes, 100, local, DPSGD(1.0, 1.0, accountant="prv"))


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError, OverflowError])
def test_an_accountant_that_fails_is_one_sentence(error, monkeypatch):
    def fails(*_):
        raise error("its mesh is too large")

    monkeypatch.setattr("opacus.accountants.PRVAccountant.get_epsilon", fails)
    with pytest.raises(InputError, match="'accountant' must be"):
        accounting.composed_epsilon([(1.0, 0.013, 7)], 1e-5, "prv")


def test_a_victim_s_turns_count_where_prv_is_refused(build):
    """A step takes a tenth of anybody's examples, but all of those with the property."""
    federation = build(sizes=(60,) * 6)
    holds = torch.zeros(360, dtype=torch.bool)
    holds[federation.clients.indices_of(2)[:6]] = True
    schedule = PropertySchedule(holds, torch.zeros(0, dtype=torch.bool), victim=2, attacker=0, period=2)
    private = LocalSGD(steps=1, batch_size=6, gradient_privacy=DPSGD(1.0, 1.0, accountant="prv"))
    local = ClientTrainings((private,))
    accounting.check_accountable(federation, 5_000, local)
    with pytest.raises(InputError, match="'accountant' must be"):
        accounting.check_accountable(replace(federation, schedule=schedule), 5_000, local)
