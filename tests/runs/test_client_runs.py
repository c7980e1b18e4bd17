"""`shoal run` on a table and on pictures that clients have already, through to the page."""

import re
from pathlib import Path

import pytest
import tomli_w

from client_files import clinics, pictures
from html_page import PNG, page_of
from run_files import content
from shoal.cli.app import main
from shoal.runs.result import load

BASE = {
    "algorithm": {"name": "fedavg", "rounds": 1},
    "local": {"batch_size": 4},
    "red_team": {"every": 0, "attack": "gap"},
}
NAMES = ("007", "NA", "c<d>")


@pytest.fixture
def table(tmp_path):
    """A configuration of a table with three clients in two groups."""
    return written(tmp_path / "table.toml", clinics(tmp_path, NAMES), "mlp")


@pytest.fixture
def folder(tmp_path):
    """A configuration of a folder of pictures, with three clients and two classes."""
    return written(tmp_path / "folder.toml", pictures(tmp_path), "digits-cnn")


def written(path, data, model):
    path.write_text(tomli_w.dumps(BASE | {"data": data, "model": {"name": model}}))
    return path


def test_a_table_is_run_through_to_its_page(table, tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["run", str(table), "--out", str(out)]) == 0
    log = (out / "run.log").read_text()
    assert "clients, by number (examples): 0 '007' (8), 1 'NA' (8), 2 'c<d>' (8)" in log
    assert "classes, by number (examples): 0 'ill' (12), 1 'well' (12)" in log
    page = page_of((out / "report.html").read_text())
    assert "south" in page.text
    for words in ("accuracy", "training rows", "held-out rows"):
        assert words in page.text
    assert "test accuracy" in capsys.readouterr().out.lower()
    # The configuration on the page has the key's value.
    assert not re.findall(r"\bimages?\b(?!-)", page.text.replace('shift_per = "image"', ""))
    clients = load(out).clients
    # In the file a name stays the text that it is, also "007" and "NA".
    assert clients[["client", "name"]].to_numpy().tolist() == [[0, "007"], [1, "NA"], [2, "c<d>"]]
    (row,) = (line for line in (out / "report.html").read_text().splitlines() if "c&lt;d&gt;" in line)
    assert "south" in row
    assert not any(address.startswith(PNG) for address in page.addresses), "a row of a table has no picture"
    # What was written runs again, to the same bits.
    assert main(["run", str(out / "config.toml"), "--out", str(tmp_path / "again")]) == 0
    assert content(tmp_path / "again") == content(out)
    assert main(["run", str(table), "--out", str(out), "--resume"]) == 0


def test_pictures_are_run_through_to_their_page_in_any_order_of_files(folder, tmp_path, monkeypatch):
    out = tmp_path / "run"
    assert main(["run", str(folder), "--out", str(out)]) == 0
    page = page_of((out / "report.html").read_text())
    assert any(address.startswith(PNG) for address in page.addresses)
    listed = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda self: iter(sorted(listed(self), reverse=True)))
    monkeypatch.setattr("shoal.runs.result.report_of", lambda out, **_: out / "report.html")
    assert main(["run", str(folder), "--out", str(tmp_path / "again")]) == 0
    assert content(tmp_path / "again") == content(out)


def test_data_shows_what_the_numbers_of_a_run_stand_for(table, capsys):
    assert main(["data", str(table)]) == 0
    printed = capsys.readouterr().out
    for words in ("1 'NA' (8)", "'north' (1), 'south' (2)", "0 'ill' (12), 1 'well' (12)", "'age', 'dose'"):
        assert words in printed
    changes = ["--set", "data.inputs=['dose']"]
    assert main(["data", str(table), *changes]) == 0
    assert "inputs, standardised: 'dose'" in capsys.readouterr().out
    assert main(["data", *changes]) == 2
    assert "shoal data FILE" in capsys.readouterr().err


def test_a_table_that_cannot_be_used_is_one_sentence_and_leaves_nothing(table, tmp_path, capsys):
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text() + "\n,south,ill,1,2")
    before = sorted(tmp_path.rglob("*"))
    assert main(["run", str(table), "--out", str(tmp_path / "run")]) == 2
    printed = capsys.readouterr().err
    assert "column 'clinic': 1 of 25" in printed
    assert len(printed.splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


def test_groups_within_clients_are_run_through_to_report_audit_and_comparison(tmp_path, capsys):
    rows = [f"{'ab'[i % 2]},{'fm'[i // 2 % 2]},{i % 7},{'no' if i % 3 else 'yes'}" for i in range(64)]
    (tmp_path / "t.csv").write_text("\n".join(["client,sex,x,label", *rows]))
    data = {"source": "table", "path": "t.csv", "client": "client", "group": "sex", "label": "label"}
    path, out = written(tmp_path / "t.toml", data, "mlp"), tmp_path / "run"
    assert main(["run", str(path), "--out", str(out)]) == 0
    assert main(["report", str(out)]) == 0
    assert main(["audit", str(out), "--references", "1"]) == 0
    assert main(["compare", str(out), str(out)]) == 0
    assert "another group is in the majority" not in capsys.readouterr().out
    assert "migrated" not in load(out).summary.overall
