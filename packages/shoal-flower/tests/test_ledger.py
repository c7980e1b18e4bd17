"""The privacy ledger survives, and never forgets."""

import math

import pytest

from shoal.core.errors import InputError
from shoal.defenses import DPSGD, accounting
from shoal.engine import LocalSGD
from shoal_flower.client.policy import Ledger

PRIVATE = LocalSGD(epochs=2, batch_size=10, gradient_privacy=DPSGD(noise_multiplier=1.1))


def test_epsilon_is_the_accountants_over_all_rounds(tmp_path):
    ledger, path = Ledger(), tmp_path / "state" / "ledger.json"
    for _ in range(3):
        ledger = ledger.after([PRIVATE], 100)
        ledger.save(path)
        ledger = Ledger.load(path)
    assert ledger.rounds == 3
    assert ledger.epsilon(1e-5) == accounting.composed([(1.1, 0.1, 60)], 1e-5)


def test_rounds_with_different_noise_are_composed():
    more = LocalSGD(epochs=2, batch_size=10, gradient_privacy=DPSGD(noise_multiplier=2.0))
    both = Ledger().after([PRIVATE], 100).after([more], 100)
    assert Ledger().after([PRIVATE], 100).epsilon(1e-5) < both.epsilon(1e-5)
    assert both.epsilon(1e-5) == accounting.composed([(1.1, 0.1, 20), (2.0, 0.1, 20)], 1e-5)


def test_two_trainings_are_one_round_of_both_their_steps():
    personal = LocalSGD(epochs=3, batch_size=20, gradient_privacy=PRIVATE.gradient_privacy)
    ledger = Ledger().after([PRIVATE, personal, PRIVATE], 100)
    assert ledger.rounds == 1
    assert ledger.epsilon(1e-5) == accounting.composed([(1.1, 0.1, 40), (1.1, 0.2, 15)], 1e-5)


def test_a_round_without_noise_has_no_guarantee():
    assert Ledger().epsilon(1e-5) == 0
    assert Ledger().after([LocalSGD(epochs=1, batch_size=10)], 100).epsilon(1e-5) == math.inf


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"steps": [[1, 2]], "answers": [], "rounds": 1, "chain": []}',
        '{"steps": [[1, 0.1, -3]], "answers": [], "rounds": 1, "chain": []}',
        '{"steps": [[1, 0.1, 3]], "answers": [], "rounds": 1, "chain": []}',
    ],
)
def test_a_damaged_ledger_stops_the_client(tmp_path, text):
    (tmp_path / "ledger.json").write_text(text)
    with pytest.raises(InputError, match="no privacy ledger"):
        Ledger.load(tmp_path / "ledger.json")
