"""The script that turns Markdown tables into the CSV files of docs/results."""

import doctest

import pytest

from experiment_scripts import experiment_script

TABLE = """**Five seeds**

| setting | accuracy | of the minority |
|---|---|---|
| **IFCA** | 0.91 ± 0.01 | 0.89 ± 0.03 |
"""


@pytest.fixture(scope="module")
def script():
    return experiment_script("tables_to_csv")


def test_its_examples_hold(script):
    assert doctest.testmod(script).failed == 0


def test_a_page_with_one_table_becomes_a_file_beside_one_of_its_name(script, tmp_path):
    (page := tmp_path / "front.md").write_text(TABLE)
    (tmp_path / "front.csv").write_text("every run\n")
    assert script.convert(page).name == "front-summary.csv"
    assert (tmp_path / "front-summary.csv").read_text().splitlines() == [
        "setting,accuracy,accuracy std,accuracy of the minority,accuracy of the minority std",
        "IFCA,0.91,0.01,0.89,0.03",
    ]
    assert not page.exists()


def test_several_tables_of_a_page_are_below_each_other_under_their_titles(script, tmp_path):
    (page := tmp_path / "bar.md").write_text(f"{TABLE}\n## Seeds\n\n| seed | bar |\n|---|---|\n| 0 | taken |\n")
    assert script.convert(page).read_text().splitlines()[1:] == [
        "Five seeds,IFCA,0.91,0.01,0.89,0.03,,",
        "Seeds,,,,,,0,taken",
    ]


def test_a_sweep_s_own_csv_takes_the_place_of_its_markdown(script, tmp_path):
    (folder := tmp_path / "tables").mkdir()
    (page := folder / "main.md").write_text(TABLE)
    (folder / "main.csv").write_text("key,mean\n")
    assert script.convert(page) is None
    assert [path.name for path in folder.iterdir()] == ["main.csv"]
