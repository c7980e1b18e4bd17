"""``shoal profile``: what it prints, and its exit codes."""

import json

import pytest

from shoal.cli.app import main


@pytest.fixture
def config(toy_config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "toy.toml"
    path.write_text(toy_config(algorithm__name="ifca", engine__threads=1).toml())
    return path


def test_it_prints_a_table_and_writes_nothing(config, tmp_path, capsys):
    assert main(["profile", str(config), "--rounds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "local training" in printed
    assert "Backend 'vmap': many clients at a time" in printed
    assert "GFLOP/s" in printed
    assert list(tmp_path.iterdir()) == [config]


def test_its_json_has_flat_keys(config, capsys):
    assert main(["profile", str(config), "--rounds", "1", "--json", "--set", "engine.backend=loop"]) == 0
    flat = json.loads(capsys.readouterr().out)
    assert (flat["rounds"], flat["backend"]) == (1, "loop")
    assert {"seconds.choose", "share.local_training", "local_training.gflop", "factor", "hints"} <= set(flat)
    assert flat["products.gflop_per_second"] > 0


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--rounds", "0"], "'rounds' must be at least 1; got 0"),
        (["--set", "engine.device=tpu"], "'engine.device' must be 'cpu' or 'cuda'"),
    ],
)
def test_bad_input_is_one_sentence(config, capsys, more, said):
    assert main(["profile", str(config), *more]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_file_that_is_missing(tmp_path, capsys):
    assert main(["profile", str(tmp_path / "none.toml")]) == 2
    assert "none.toml" in capsys.readouterr().err
