"""The board of defences: a toy board is measured and guarded, and the page shows the rows of the shipped one."""

import pandas as pd
import pytest
import tomli_w

from experiment_scripts import EXPERIMENTS, experiment_script

ROOT = EXPERIMENTS.parent


@pytest.fixture(scope="module")
def script():
    return experiment_script("board/board")


@pytest.fixture
def folder(script, toy_config, tmp_path):
    """A board of one federation, and a defence, mine.toml."""
    (tmp_path / "small.toml").write_text(
        toy_config(algorithm__name="ifca", red_team={"every": 0, "attack": "gap"}).toml()
    )
    (tmp_path / "mine.toml").write_text(tomli_w.dumps({"name": "mine", "about": "x", "changes": {"local.epochs": 1}}))
    asked = {"file": "small.toml", "configuration": "?", "examples": "?"}
    for _ in range(2):
        board = {"development_seeds": [100], "judging_seeds": 2, "references": 1, "federations": {"small": asked}}
        (tmp_path / "board.toml").write_text(tomli_w.dumps(board))
        asked["configuration"], asked["examples"] = script.read_board(tmp_path).hashes("small")
    return tmp_path


@pytest.mark.usefixtures("_unrendered_figures")
def test_a_defence_has_rows_on_its_own_seeds_and_changed_federations_are_refused(script, folder, capsys):
    command = [str(folder / "mine.toml"), "--board", str(folder), "--out", str(folder / "out")]
    assert script.main([*command, "--judge", "--quiet"]) == 0
    rows = pd.read_csv(folder / "out" / "mine.csv")
    assert set(rows["seed"]) == set(script.Defence("any", "x", {"local.epochs": 1}).seeds(2))
    assert (rows["outsider"] <= rows["client"]).all()
    assert (rows["client"] <= rows["server"]).all()
    assert capsys.readouterr().out.startswith("| defence | small |\n|---|---:|\n| mine | 1 |\n")
    (folder / "small.toml").write_text((folder / "small.toml").read_text() + "\n[canaries]\nper_client = 1\n")
    assert script.main(command) == 2
    assert "computes something else than the board's federation 'small'" in capsys.readouterr().err


def test_the_page_shows_the_shipped_rows_and_every_defence_can_be_read(script, capsys):
    assert script.main([]) == 0
    page = (ROOT / "docs" / "board.md").read_text(encoding="utf-8")
    for table in capsys.readouterr().out.strip().split("\n\n"):
        assert table in page
    board = script.read_board(EXPERIMENTS / "board")
    files = sorted((EXPERIMENTS / "board" / "defences").glob("*.toml"))
    assert len({script.read_defence(path, board).name for path in files}) == len(files) >= 10
