"""The script that lets sybils join CFL on digits: that all files are written, and what its tables say."""

import pandas as pd
import pytest

from experiment_scripts import experiment_script
from shoal.core.errors import InputError

pytestmark = pytest.mark.usefixtures("_rendered_figures")


@pytest.fixture(scope="module")
def script():
    return experiment_script("attacks/model_acquisition")


def test_one_seed_writes_all_files(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "ATTACKED", (("adaptive", "none"), ("adaptive", "admission 0.3")))
    monkeypatch.setattr(script, "DEFENSES", {name: script.DEFENSES[name] for name in ("none", "admission 0.3")})
    monkeypatch.setattr(script, "SETTLE", 4)
    text = script.acquire(tmp_path / "out", [0], 2, [], "python script.py")
    shares, newcomers, membership = (
        pd.read_csv(tmp_path / "out" / f"{name}.csv") for name in ("shares", "newcomers", "membership")
    )
    assert shares["share"].tolist() == [0.25, 0.5, 0.25, 0.25], "the second sybil is refused"
    assert (newcomers[["own", "other", "divided", "refused"]].sum(axis=1) == 1).all()
    assert newcomers["examples"].tolist() == ["all", "10"] * 2
    assert newcomers["own"][0] == 1
    assert newcomers["refused"][3] > 0, "few examples make updates less similar"
    assert membership["own"].sum() == 1
    others = membership[~membership["obtained"]]
    assert (others["harvest"] == others["own_model"]).all(), "what was not obtained is attacked by the own model"
    assert (tmp_path / "out" / "model-acquisition.svg").read_text().startswith("<?xml")
    assert (tmp_path / "out" / "model-acquisition.md").read_text() == text
    assert "| adaptive | admission 0.3 | 0.250 ± nan | 0.250 ± nan |" in text
    assert not list((tmp_path / "out").glob(".*"))


def test_too_few_clients_are_one_sentence_and_nothing_is_written(script, tmp_path):
    with pytest.raises(InputError, match=r"^every group needs 8 clients; 'data.clients' gives \[6, 6, 6, 6\]$"):
        script.acquire(tmp_path / "out", [0], 2, ["data.clients=24"], "python script.py")
    with pytest.raises(InputError, match=r"^'--sybils' must be at least 1; got 0$"):
        script.acquire(tmp_path / "out", [0], 0, [], "python script.py")
    assert not (tmp_path / "out").exists()
