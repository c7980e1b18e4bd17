"""The script that asks every attack of an audit about the runs of a sweep."""

import sys

import pandas as pd
import pytest

from experiment_scripts import experiment_script
from shoal.core.formats import DASH
from shoal.sweeps import Workers, read_sweep, run_sweep


@pytest.fixture(scope="module")
def script():
    return experiment_script("attacks/every_attack")


def test_every_attack_audits_the_runs_of_a_sweep_and_writes_both_files(script, toy_sweep, tmp_path, monkeypatch):
    grid = 'base = "base.toml"\nseeds = [0, 1]\n[grid.setting]\n"IFCA" = { "algorithm.name" = "ifca" }\n'
    sweep = toy_sweep(tmp_path, grid, algorithm__rounds=2, record={"updates": 1})
    run_sweep(read_sweep(sweep), tmp_path / "runs", workers=Workers(1))
    monkeypatch.setattr(
        sys, "argv", ["every_attack.py", str(tmp_path / "runs"), str(tmp_path / "out"), "--references", "1"]
    )
    monkeypatch.setattr("shoal.reports.audit.audit_page.audit_page", lambda *_, **__: "")
    script.main()
    found = pd.read_csv(tmp_path / "out" / "attacks.csv")
    assert found.groupby("setting")["seed"].nunique().to_dict() == {"IFCA": 2}
    assert {"attacks.fedmia-ii.all.auc", "attacks.rmia-offline.all.auc", "source-inference.chance"} <= set(found["key"])
    assert not found["key"].str.startswith("seconds").any()
    assert (tmp_path / "out" / "attacks.md").read_text() == script.report(found)


def test_a_cell_is_mean_and_deviation_over_seeds_and_a_row_without_any_is_left_out(script):
    rows = [
        (setting, seed, key, value + 0.1 * seed)
        for setting, value in (("one", 0.5), ("two", 0.7))
        for seed in (0, 1, 2)
        for key in ("attacks.gap.all.auc", "source-inference.accuracy")
        if (setting, key) != ("two", "source-inference.accuracy")
    ]
    text = script.report(pd.DataFrame(rows, columns=["setting", "seed", "key", "value"]))
    assert text.startswith("# Every attack\n\n3 seeds, mean ± standard deviation\n")
    assert "| gap | 0.600 ± 0.100 | 0.800 ± 0.100 |" in text
    assert f"| source-inference | 0.600 ± 0.100 | {DASH} |" in text
    assert "cluster-identity" not in text
