"""The programs of docs/use.md, one after the other, as a reader would copy them."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "use.md").read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_the_programs_of_the_page_run_in_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    made = {}
    for program in re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL):
        # The second names a run that the third makes, and eight reference federations that take long.
        exec(program.replace('"runs/long"])', '"runs/mine"])').replace("references=8", "references=1"), made)
    assert made["result"].clients.groupby("group")["cluster"].nunique().tolist() == [1, 1]
    assert (tmp_path / "runs" / "long" / "summary.json").exists()
    assert "adjusted_rand_index=1.0" in capsys.readouterr().out
