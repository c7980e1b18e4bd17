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
    ("spent", "sigma", "delta"),
    [([(0.1, 30)], 1.0, 1e-5), ([(0.05, 40), (0.2, 3)], 0.8, 1e-4), ([(1.0, 4)], 2.0, 1e-6), ([(0.02, 7)], 0.5, 1e-5)],
)
def test_epsilon_is_opacus_s(accountant, spent, sigma, delta):
    expected = opacus(accountant, [(sigma, share, steps) for share, steps in spent], delta)
    assert accounting.epsilon(spent, sigma, delta, accountant) == pytest.approx(expected, abs=1e-6)
    assert expected > 0


def test_epsilon_is_infinite_without_noise_and_0_without_steps():
    for accountant in ("rdp", "prv"):
        assert accounting.epsilon([(0.1, 3)], 0.0, 1e-5, accountant) == math.inf
        assert accounting.epsilon([], 0.0, 1e-5, accountant) == 0
        assert accounting.epsilon([(0.1, 0)], 1.0, 1e-5, accountant) == 0


def test_each_client_by_its_size_and_its_rounds(monkeypatch):
    asked = []
    monkeypatch.setattr(accounting, "composed", lambda *given: asked.append(given) or float(len(asked)))
    sizes, attended = torch.tensor([9, 12, 9, 3, 9]), torch.tensor([5, 5, 5, 2, 0])
    rule = DPSGD(1.0, 0.9, 1e-4, "prv")
    assert accounting.client_epsilons([(LOCAL, sizes, attended)], rule).tolist() == [1, 2, 1, 3, 4]
    assert [given[0] for given in asked] == [[(0.9, 4 / 9, 30)], [(0.9, 4 / 12, 30)], [(0.9, 1.0, 4)], []]
    assert {given[1:] for given in asked} == {(1e-4, "prv")}


def test_a_federation_s_clients_spend_in_the_rounds_they_are_in(build):
    federation, rule = build(), DPSGD(1.0, 1.0)
    cohorts = [torch.tensor([0, 1]), torch.tensor([1, 3]), torch.empty(0, dtype=torch.int64), torch.tensor([1])]
    found = accounting.federation_epsilons(federation, cohorts, ONCE, rule)
    sizes = federation.clients.sizes.tolist()
    rounds = [1, 3, 0, 1, 0, 0]
    for i, (size, count) in enumerate(zip(sizes, rounds, strict=True)):
        spent = [(4 / size, count * LOCAL.steps_of(size))]
        assert found[i] == accounting.epsilon(spent, 1.0, 1e-5)


def test_a_victim_that_takes_turns_spends_what_the_more_used_part_of_its_examples_does(build):
    federation, rule = build(), DPSGD(1.0, 1.0)
    everyone = [torch.arange(6)] * 7
    plain = accounting.federation_epsilons(federation, everyone, ONCE, rule)
    holds = torch.zeros(len(federation.clients.y), dtype=torch.bool)
    holds[federation.clients.owned(2)[:2]] = True  # Two of seven hold the property.
    schedule = PropertySchedule(
        holds, torch.zeros(0, dtype=torch.bool), int(federation.ids[2]), int(federation.ids[0]), period=2
    )
    found = accounting.federation_epsilons(replace(federation, schedule=schedule), everyone, ONCE, rule)
    # In rounds 2, 4 and 6 the two, both in every step; in the four others the five, in two steps a pass.
    with_it = accounting.epsilon([(1.0, 3 * 2)], 1.0, 1e-5)
    without = accounting.epsilon([(4 / 5, 4 * 4)], 1.0, 1e-5)
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
    with pytest.raises(InputError, match=r'the accountant "prv" takes too much memory.*use "rdp"'):
        accounting.check_computable(sizes, 5000, local, DPSGD(1.0, 0.2, accountant="prv"))
    accounting.check_computable(sizes, 5000, local, DPSGD(1.0, 0.2))
    accounting.check_computable(sizes, 100, local, DPSGD(1.0, 1.0, accountant="prv"))


@pytest.mark.parametrize("error", [RuntimeError, ValueError, MemoryError, OverflowError])
def test_an_accountant_that_fails_is_one_sentence(error, monkeypatch):
    def fails(*_):
        raise error("its mesh is too large")

    monkeypatch.setattr("opacus.accountants.PRVAccountant.get_epsilon", fails)
    with pytest.raises(InputError, match=r'the accountant "prv" takes too much memory.*use "rdp"'):
        accounting.epsilon([(0.013, 7)], 1.0, 1e-5, "prv")


def test_a_victim_s_turns_count_where_prv_is_refused(build):
    """A step takes a tenth of anybody's examples, but all of those with the property."""
    federation = build(sizes=(60,) * 6)
    holds = torch.zeros(360, dtype=torch.bool)
    holds[federation.clients.owned(2)[:6]] = True
    schedule = PropertySchedule(holds, torch.zeros(0, dtype=torch.bool), victim=2, attacker=0, period=2)
    private = LocalSGD(steps=1, batch_size=6, gradient_privacy=DPSGD(1.0, 1.0, accountant="prv"))
    local = ClientTrainings((private,))
    accounting.check_accountable(federation, 5_000, local)
    with pytest.raises(InputError, match="takes too much memory"):
        accounting.check_accountable(replace(federation, schedule=schedule), 5_000, local)
