"""The experiment on real tables: groups by size, differences by seed, and accuracy on clients' own rows."""

import json

import pandas as pd
import pytest
from scipy import stats

from experiment_scripts import experiment_script
from shoal.config.schema import parse_config
from shoal.runs.run import run

page, real, tables = (experiment_script(f"real/{name}") for name in ("page", "run", "real_tables"))


def test_the_third_of_the_clients_with_the_fewest_rows_is_small() -> None:
    clients = pd.Series([*"aaaabbbccddeff"])
    small = tables._by_size(clients) == "small"
    assert set(clients[small]) == {"c", "e"}


def test_differences_are_paired_by_seed() -> None:
    values = {"fedavg": [0.5, 0.6, 0.8], "ifca": [0.52, 0.65, 0.81]}
    rows = [{"table": "t", "method": method, "seed": seed, **dict.fromkeys(page.MEASURES, value)}
            for method, of_method in values.items() for seed, value in enumerate(of_method)]  # fmt: skip
    ifca = page.accuracy_table(pd.DataFrame(rows)).query("method == 'ifca' and measure == 'accuracy'").iloc[0]
    low, high = stats.ttest_rel(values["ifca"], values["fedavg"]).confidence_interval(0.95)
    assert [ifca["difference"], ifca["low"], ifca["high"]] == pytest.approx([0.08 / 3, low, high], abs=1e-4)


def test_a_model_is_measured_on_its_own_clients_rows(tmp_path) -> None:
    """Two clients with opposite labels: each one's own model is right about its rows, and wrong about half of all."""
    rows = [
        {"client": c, "group": "all", "label": int((i % 2 == 0) == (c == "a")), "x": i % 2}
        for c in "ab"
        for i in range(80)
    ]
    path = tmp_path / "rows.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    config = parse_config(real.configuration(path, "local", 0, audited=False), "here")
    summary = json.loads((run(config, tmp_path / "run") / "summary.json").read_text())
    assert summary["own.accuracy"] == 1
    assert summary["own.worst"] == 1
    assert summary["accuracy.overall"] == pytest.approx(0.5)
