"""The script on what choices and released models give away, on toy runs and made-up figures."""

import pandas as pd
import pytest

from experiment_scripts import experiment_script


@pytest.fixture(scope="module")
def choices():
    return experiment_script("audit/choices")


def test_a_run_has_its_figures_and_one_model_has_no_choices(choices, toy_config, capsys):
    found = choices.measured(toy_config(algorithm={"name": "ifca", "rounds": 3, "clusters": 2}))
    assert {"cosine", "baseline", "group", "strictness", "strictness.low"} <= set(found)
    assert found["strictness.low"] <= found["strictness"] <= found["strictness.high"]
    alone = choices.measured(toy_config(algorithm={"name": "fedavg", "rounds": 3}))
    assert "strictness" not in alone
    assert alone["cosine"] == pytest.approx(alone["baseline"], abs=1e-4), "all are always together"
    assert "at least two clusters" in capsys.readouterr().err


def test_what_seeds_do_not_agree_on_is_open(choices):
    common = {"group": 0.9, "baseline": 0.4, "largest": 0.8, "explained": 1.0}
    rows = [
        {"algorithm": name, "seed": seed, "strictness": accuracy, "strictness.low": accuracy - 0.1,
         "strictness.high": accuracy + 0.1, "cosine": cosine, **common}
        for name, accuracies, cosines in (
            ("IFCA", (0.45, 0.52, 0.51), (0.2, 0.3, 0.1)), ("IFCA-MIR", (0.7, 0.71, 0.72), (0.3, 0.5, 0.45)),
        )
        for seed, (accuracy, cosine) in enumerate(zip(accuracies, cosines, strict=True))
    ]  # fmt: skip
    page = choices.report(pd.DataFrame(rows))
    assert "| IFCA | 0.900 ± 0.000 | 0.493 ± 0.038 | -0.007 | -0.101 to +0.087, open | 3 of 3 |" in page
    assert "| IFCA-MIR | 0.900 ± 0.000 | 0.710 ± 0.010 | +0.210 | +0.185 to +0.235 | 0 of 3 |" in page
    assert "| IFCA | 0.200 ± 0.100 | 0.400 ± 0.000 | -0.200 | -0.448 to +0.048, open |" in page
