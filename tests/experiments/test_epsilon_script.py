"""The script that looks for the settings behind a paper's epsilons: its formulas against Opacus', and what it found."""

import math
from dataclasses import replace

import pytest

from experiment_scripts import experiment_script
from shoal.defenses import accounting


@pytest.fixture(scope="module")
def script():
    return experiment_script("property/epsilon")


@pytest.mark.parametrize(("rate", "steps", "delta"), [(0.1, 30, 1e-5), (1.0, 1, 1e-4)])
def test_its_rdp_is_opacus_s(script, rate, steps, delta):
    found = script.ACCOUNTANTS["RDP, Opacus"](script.Setting("", rate, steps, delta), 0.8)
    assert found == pytest.approx(accounting.composed([(0.8, rate, steps)], delta), abs=1e-6)


@pytest.mark.parametrize("rate", [1.0, 0.3])
@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_its_exact_epsilon_is_what_prv_comes_near_from_above(script, rate, sigma):
    exact = script.exact(script.Setting("", rate, 1, 1e-5), sigma)
    assert exact <= accounting.composed([(sigma, rate, 1)], 1e-5, "prv") <= exact + 0.03
    assert math.isnan(script.exact(script.Setting("", rate, 2, 1e-5), sigma))


def test_one_step_of_173_examples_by_the_moments_accountant_gives_both_of_the_paper_s(script):
    setting = script.Setting("", 32 / 173, 1, 1e-5)
    moments = script.ACCOUNTANTS["moments to 32"]
    assert script.matching({sigma: moments(setting, sigma) for sigma in script.PAPER})
    for other in (replace(setting, steps=2), replace(setting, delta=1e-4), replace(setting, rate=32 / 160)):
        assert not script.matching({sigma: moments(other, sigma) for sigma in script.PAPER})
