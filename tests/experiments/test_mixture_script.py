"""The script that compares a mixture with its deployed component."""

import importlib.util
from pathlib import Path

import pytest

from shoal import load, run

PATH = Path(__file__).parents[2] / "experiments" / "algorithms" / "mixture.py"


@pytest.fixture(scope="module")
def mixture():
    spec = importlib.util.spec_from_file_location("mixture", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_component_s_accuracy_is_the_run_s_and_a_mixture_of_one_is_its_component(mixture, toy_config, tmp_path):
    two, one = (toy_config(algorithm={"name": "fedem", "rounds": 2, "clusters": m}) for m in (2, 1))
    component, mixed = mixture.accuracies(two)
    assert component == pytest.approx(load(run(two, tmp_path / "run")).summary.overall["accuracy.overall"])
    assert mixed != component
    alone, same = mixture.accuracies(one)
    assert alone == same


def test_the_table_leaves_other_algorithms_out(mixture, toy_config, monkeypatch):
    monkeypatch.setattr(mixture, "accuracies", lambda config: (0.25 * config.seed, 0.5))
    runs = [
        ("IFCA", toy_config(algorithm={"name": "ifca", "rounds": 1})),
        *(("FedEM", toy_config(algorithm={"name": "fedem", "rounds": 1}, seed=seed)) for seed in (1, 3)),
    ]
    assert mixture.table(runs).splitlines()[2:] == ["| FedEM | 0.500 +- 0.354 | 0.500 +- 0.000 |"]


def test_help_is_printed_and_needs_no_sweep(mixture, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["mixture.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        mixture.main()
    assert ended.value.code == 0
    assert "the file of a sweep" in capsys.readouterr().out
