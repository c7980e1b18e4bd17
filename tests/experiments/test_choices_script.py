"""The script on what choices give away, on toy runs and made-up figures."""

import pandas as pd
import pytest

from experiment_scripts import experiment_script


@pytest.fixture(scope="module")
def choices():
    return experiment_script("audit/choices")


def test_a_run_has_its_figures_and_one_model_has_no_choices(choices, toy_config, capsys):
    found = choices.measured(toy_config(algorithm={"name": "ifca", "rounds": 3, "clusters": 2}))
    assert {"group", "strictness", "strictness.low", "strictness.high"} == set(found)
    assert found["strictness.low"] <= found["strictness"] <= found["strictness.high"]
    assert choices.measured(toy_config(algorithm={"name": "fedavg", "rounds": 3})) == {}
    assert "at least two clusters" in capsys.readouterr().err


def test_what_seeds_do_not_agree_on_is_open(choices):
    rows = [
        {"algorithm": name, "seed": seed, "strictness": accuracy, "group": 0.9, "strictness.low": accuracy - 0.1,
         "strictness.high": accuracy + 0.1}
        for name, accuracies in (("IFCA", (0.45, 0.52, 0.51)), ("IFCA-MIR", (0.7, 0.71, 0.72)))
        for seed, accuracy in enumerate(accuracies)
    ]  # fmt: skip
    page = choices.report(pd.DataFrame(rows))
    assert "| IFCA | 0.900 ± 0.000 | 0.493 ± 0.038 | -0.007 | -0.101 to +0.087, open | 3 of 3 |" in page
    assert "| IFCA-MIR | 0.900 ± 0.000 | 0.710 ± 0.010 | +0.210 | +0.185 to +0.235 | 0 of 3 |" in page
