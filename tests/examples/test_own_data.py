"""The programs of docs/own-data.md, as a reader would copy them."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")


def test_the_example_of_a_regression_finds_both_slopes(capsys):
    (example,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "regression" in each)
    made = {}
    exec(example, made)
    result = made["result"]
    assert result.clients.groupby("group")["cluster"].nunique().tolist() == [1, 1]
    assert result.clients["cluster"].nunique() == 2
    assert result.clients["accuracy"].between(-0.05, 0).all()
    assert "accuracy" in capsys.readouterr().out


def test_the_example_of_an_adapter_trains_and_is_merged():
    (example,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "peft" in each)
    made = {}
    exec(example, made)
    assert made["model"].parameters == 2 * (4 + 16) + 16 * 2 + 2
    assert made["result"].summary.overall["accuracy.overall"] > 0.75
    assert {*made["plain"].state_dict()} == {*made["body"].state_dict()}


def test_the_example_of_mapped_files_trains_on_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (example,) = (each for each in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL) if "ClientArrays" in each)
    made = {}
    exec(example, made)
    assert made["federation"].clients.mapped
    assert made["result"].summary.overall["accuracy.overall"] > 0.75
