"""The sources `folder` and `table` in a configuration: which keys they take, and what is decided from their files."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import tomli_w
import torch

import refused_input
import shoal
from shoal.attacks import LossThreshold
from shoal.config.build import build, load_data, resolve
from shoal.config.schema import Config, parse_config, read_config
from shoal.data import ClientSplit, Columns, Group, PictureFormat
from shoal.models import MODELS, VectorShape, create_model
from shoal.runs.audits.card import write_card
from shoal.runs.result import report_of
from shoal.sweeps.plan import dataset_of
from shoal.sweeps.sweep_file import read_sweep

BASE = {
    "model": {"name": "logistic"},
    "algorithm": {"name": "fedavg", "rounds": 1},
    "red_team": {"every": 0, "attack": "gap"},
}


@pytest.fixture
def table(tmp_path):
    """[data] of 4 clients with 10 rows each, the first of the group north."""
    rows = [
        f"c{i // 10},{'north' if i < 10 else 'south'},{'ill' if i % 2 else 'well'},{i % 7},{i % 3},Rome"
        for i in range(40)
    ]
    (tmp_path / "t.csv").write_text("\n".join(["who,area,state,age,dose,city", *rows]))
    path = str(tmp_path / "t.csv")
    return {"source": "table", "path": path, "client": "who", "label": "state", "group": "area"}


def config_of(data, **tables) -> Config:
    return parse_config(BASE | {"data": data} | tables, "test")


def resolved(data, **tables):
    config = config_of(data, **tables)
    return resolve(config, load_data(config.data))


def refused(data, **tables):
    return refused_input.refused(lambda: build(config_of(data, **tables)))


def test_what_files_decide_is_written_and_read_again(table, tmp_path):
    found = resolved(table | {"holdout_fraction": 0.1})
    section = found.config.data
    assert section.groups == {"north": Group("north", 0.25), "south": Group("south", 0.75)}
    assert section.split == ClientSplit(0.2, holdout_fraction=0.1)
    assert section.columns == Columns("who", "state", "area", ("age", "dose"))
    assert found.config.model.classes == 2
    path = tmp_path / "config.toml"
    path.write_text(found.config.toml())
    again = read_config(path)
    assert again == found.config
    assert resolve(again, load_data(again.data)).config == again


def test_the_federation_has_the_clients_of_the_file(table):
    _, simulation = build(config_of(table))
    federation = simulation.federation
    assert len(federation) == 4
    assert federation.groups == ("north", "south")
    assert federation.clients.x.shape == (32, 2)
    assert federation.clients.sizes.tolist() == [8] * 4
    assert len(federation.test) == 8
    other = build(config_of(table, seed=1))[1].federation
    assert not other.test.y.equal(federation.test.y) or not other.test.x.equal(federation.test.x)


def test_pictures_decide_size_and_channels(tmp_path):
    images = pytest.importorskip("PIL.Image")
    for i in range(8):
        path = tmp_path / f"c{i % 2}" / f"k{i // 4}" / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        images.new("L", (6, 4), i).save(path)
    data = {"source": "folder", "path": str(tmp_path)}
    section = resolved(data).config.data
    assert section.pictures == PictureFormat((4, 6), 1)
    assert resolved(data | {"size": [2, 2], "channels": 3}).config.data.pictures == PictureFormat((2, 2), 3)
    assert build(config_of(data | {"size": [2, 2]}))[1].federation.test.x.shape[1:] == (1, 2, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clients": 10}, "'data.clients' is not allowed with the source 'table'"),
        ({"test_examples": 10}, "'data.test_examples' is not allowed with the source 'table'"),
        ({"size": [2, 2]}, "'data.size' is not allowed with the source 'table'"),
        ({"test_fraction": 0}, "'data.test_fraction' must be above 0 (got 0"),
        ({"test_fraction": 0.5, "shadow_fraction": 0.5}, "must sum to less than 1"),
        ({"client": 3}, "'data.client' must be a string (got 3"),
        ({"inputs": "age"}, "'data.inputs' must be a list (got 'age'"),
        ({"label": None}, "'data.label' is missing"),
        ({"client": None, "label": None, "group": None}, "'data.client' is missing"),
        (
            {"source": "digits"},
            "'data.client' is not allowed with the source 'digits'",
        ),
        ({"source": "tabel"}, "'tabel')"),
        ({"path": None}, "'table' is missing"),
        ({"path": "/nowhere.csv"}, "'table' does not exist (got '/nowhere.csv') in the folder '/'"),
        ({"path": "no.csv"}, f"'no.csv') in the folder '{Path.cwd()}'"),
        ({"path": "C:\new\table.csv"}, "TOML reads a backslash in double quotes as an escape"),
        ({"path": "/"}, "'table' must be a file (got the folder '/')"),
        ({"task": "class"}, "[data]: 'task'"),
        ({"client": "whos"}, "has no column 'whos'; did you mean 'who'?"),
        ({"groups": {"east": {"share": 1.0}}}, "'south' (0.75 of the clients)"),
    ],
)
def test_keys_that_do_not_fit_are_one_sentence(table, change, words):
    data = {key: value for key, value in (table | change).items() if value is not None}
    assert words in refused(data)


def test_a_folder_takes_no_columns_and_a_set_that_is_dealt_out_no_fractions():
    assert "'data.group' is not allowed with the source 'folder'" in refused({"source": "folder", "group": "a"})
    assert "'data.size' must be two integers, [height, width]" in refused({"source": "folder", "size": [28]})
    assert "'path' of data source 'folder' is missing" in refused({"source": "folder"})
    digits = {"source": "digits", "clients": 2, "examples_per_client": 5, "test_examples": 5, "test_fraction": 0.1}
    assert "'data.test_fraction' is not allowed with the source 'digits'" in refused(digits)
    assert "'data.clients' is missing" in refused({"source": "digits"})


def test_what_a_red_team_or_an_algorithm_needs_of_the_clients(table):
    shadows = {"every": 1, "attack": "loss-threshold"}
    assert "a shadow set of at least 2 examples" in refused(table, red_team=shadows)
    for estimator in ("federated", "histogram"):
        team = {"every": 1, "attack": "gap", "estimator": estimator}
        assert f"the '{estimator}' estimator needs hold-out examples" in refused(table, red_team=team)
    ifca = {"name": "ifca", "clusters": 5, "rounds": 1}
    assert "'algorithm.clusters' must be at most the number of clients, 4 (got 5)" in refused(table, algorithm=ifca)
    assert "[property_attack]: 'table'" in refused(table, property_attack={})
    assert "4 numbers" in refused(table, privacy={"beta": [0.1]})


def test_networks_of_images_and_texts_refuse_rows_of_a_table(table):
    for name in MODELS:
        if name in ("mlp", "logistic"):
            assert create_model(name, VectorShape(2, 3)).layout.size > 0
        else:
            words = refused(table, model={"name": name})
            assert "rows of a table" in words
    assert "'mlp', 'logistic'" in refused(table, model={"name": "mnist-cnn"})


def test_a_relative_path_starts_from_the_folder_of_the_file_that_names_it(table, tmp_path, monkeypatch):
    (tmp_path / "run.toml").write_text(tomli_w.dumps(BASE | {"data": table | {"path": "t.csv"}}))
    (tmp_path / "sweep.toml").write_text('base = "run.toml"\nseeds = [0]\n[grid]\n"algorithm.rounds" = [1]\n')
    (elsewhere := tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(elsewhere)
    config = read_config(tmp_path / "run.toml")
    assert resolve(config, load_data(config.data)).config.data.path == str(tmp_path / "t.csv")
    assert read_sweep(tmp_path / "sweep.toml").runs[0].config.data.path == config.data.path
    monkeypatch.chdir(tmp_path)
    assert read_config(Path("run.toml"), ["data.path=t.csv"]).data.path == "t.csv"


def test_a_regression_standardises_its_targets_and_runs_with_an_attack_on_losses(table):
    data = table | {"label": "dose", "task": "regression", "shadow_fraction": 0.2}
    found = resolved(data, red_team={"every": 0})
    assert (found.config.red_team.attack, found.config.model.classes) == (LossThreshold(), 1)
    y = found.simulation.federation.clients.y
    assert found.simulation.federation.classes is None
    assert abs(float(y.mean())) < 1e-6
    assert abs(float(y.std(correction=0)) - 1) < 1e-6
    assert parse_config(found.config.table(), "written") == found.config
    assert "'many' in row 2" in refused_of_cell(table)
    assert shoal.Run(found.simulation).train().summary.by_group["north"]["accuracy"] <= 0


def test_every_page_of_a_regression_names_its_measure(table, tmp_path):
    data = table | {"label": "dose", "task": "regression", "shadow_fraction": 0.2}
    ifca = {"name": "ifca", "clusters": 2, "rounds": 1}
    out = shoal.run(config_of(data, algorithm=ifca, red_team={"every": 0}), tmp_path / "run")
    write_card(out)
    for text in (report_of(out).read_text(), str(shoal.load(out))):
        assert "minus squared error" in text
        assert not re.search("(Test|in) accuracy", text)
    assert "minus squared error, all" in (out / "card.html").read_text()


def refused_of_cell(table):
    path = Path(table["path"])
    path.write_text(path.read_text().replace("ill,1,1", "ill,1,many", 1))
    return refused(table | {"label": "dose", "task": "regression", "inputs": ["age"]})


def test_a_class_without_test_examples_is_said(table, caplog):
    path = Path(table["path"])
    path.write_text(path.read_text() + "\nc0,north,odd,1,1,Rome\nc0,north,odd,2,2,Rome")
    found = resolved(table | {"test_fraction": 0.01})
    assert any("no test example of the class" in said for said in found.warnings)
    frame = pd.DataFrame({"who": ["a", "a", "b"], "x": [0.0, 1.0, 2.0], "state": ["ill", "well", "odd"]})
    shoal.Federation.from_table(frame, Columns("who", "state"), test=frame.head(2))
    x = torch.rand(2, 1)
    shoal.Federation.from_tensors([(x, [0, 2])], test=(x, [0, 1]))
    said = " ".join(record.message for record in caplog.records)
    assert "only one example of the class 'odd'" in said
    assert "no training example of the class '1'" in said


def test_a_sweep_reads_a_table_once(table):
    config = config_of(table)
    data = dataset_of(config, None)
    assert dataset_of(replace(config, seed=5), None) is data
    assert dataset_of(config_of(table | {"inputs": ["age"]}), None) is not data


def test_the_documentation_s_files_are_read():
    text = (Path(__file__).parents[2] / "docs" / "own-data.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    sections = [parse_config(tomllib.loads(block), "docs").data for block in blocks]
    assert [section.source for section in sections] == ["folder", "table", "hsb82"]
    assert sections[0].pictures == PictureFormat((64, 64), 1)
    assert sections[1].columns == Columns("clinic", "state", "area", ("age", "bmi"), impute="median")
    assert sections[2].columns.client == "school"
    assert [section.split for section in sections] == [ClientSplit(shadow_fraction=0.2)] * 3
