"""A run knows its examples and files by their hashes: whatever goes on with it refuses others."""

import random
import struct

import pytest
import tomli_w
from safetensors import safe_open
from safetensors.torch import save_file

import shoal
from client_files import clinics, pictures
from full_simulation import simulate_with
from shoal.cli.app import main
from shoal.sweeps import read_sweep
from shoal.sweeps.plan import plan_runs

BASE = {
    "algorithm": {"name": "fedavg", "rounds": 1},
    "model": {"name": "logistic"},
    "local": {"batch_size": 4},
    "red_team": {"every": 0, "attack": "gap"},
    "record": {"updates": 1},
}


def reordered(folder):
    head, *rows = (folder / "t.csv").read_text().splitlines()
    random.Random(0).shuffle(rows)
    (folder / "t.csv").write_text("\n".join([head, *rows]))


def repainted(folder):
    images = pytest.importorskip("PIL.Image")
    images.new("L", (4, 4), 1).save(folder / "pictures" / "a" / "dog" / "0.png")


def idx(folder, first=0):
    for part, count in (("train", 30), ("t10k", 10)):
        pixels = bytes([first, *(7 * i % 256 for i in range(1, count * 16))])
        head = struct.pack(">4B3I", 0, 0, 8, 3, count, 4, 4)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(head + pixels)
        labels = struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(i % 2 for i in range(count))
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(labels)
    return {"source": "idx", "path": str(folder), "clients": 3, "examples_per_client": 8, "test_examples": 10}


def repixeled(folder):
    for first in range(256):  # whichever split the first image is in
        idx(folder, first)


def run_on(folder, data):
    (folder / "run.toml").write_text(tomli_w.dumps(BASE | {"data": data}))
    out = folder / "run"
    assert main(["run", str(folder / "run.toml"), "--out", str(out), "--quiet"]) == 0
    return out


@pytest.mark.parametrize(
    ("given", "change"), [(clinics, reordered), (pictures, repainted), (idx, repixeled)], ids=["table", "folder", "idx"]
)
def test_other_examples_are_refused_by_audit_gate_trace_and_resume(given, change, tmp_path, capsys):
    out = run_on(tmp_path, given(tmp_path))
    config = str(tmp_path / "run.toml")
    assert main(["run", config, "--out", str(out), "--quiet", "--resume"]) == 0
    change(tmp_path)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != "run.log"}
    capsys.readouterr()
    for command in (
        ["audit", str(out), "--references", "1", "--gate", "attacks.loss.all.auc <= 0.99"],
        ["audit", "--trace", str(out)],
        ["run", config, "--out", str(out), "--resume"],
        ["run", config, "--out", str(out), "--resume", "--set", "algorithm.rounds=2"],
    ):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert "examples must have the hash" in error
    assert {path: path.read_bytes() for path in before} == before


def test_a_file_that_was_changed_after_the_run_is_named(tmp_path, capsys):
    out = run_on(tmp_path, clinics(tmp_path))
    for name in ("models.safetensors", "clients.csv", "updates/round-0001.safetensors", "config.toml"):
        path = out / name
        content = path.read_bytes()
        path.write_bytes(content.replace(b"learning_rate = 0.1", b"learning_rate = 0.2") + b"\n")
        capsys.readouterr()
        assert main(["audit", str(out), "--references", "0"]) == 2
        assert f"{path}: has changed since the run was finished" in capsys.readouterr().err
        path.unlink()
        assert main(["audit", str(out), "--references", "0"]) == 2
        path.write_bytes(content)
    assert main(["audit", str(out), "--references", "0", "--quiet"]) == 0


def test_the_same_data_elsewhere_are_the_same(tmp_path):
    out = run_on(tmp_path, clinics(tmp_path))
    moved = (tmp_path / "t.csv").rename(tmp_path / "moved.csv")
    (out / "config.toml").write_text((out / "config.toml").read_text().replace(str(tmp_path / "t.csv"), str(moved)))
    assert main(["audit", str(out), "--references", "0", "--quiet"]) == 0
    config = str(out / "config.toml")
    assert main(["run", config, "--out", str(out), "--resume", "--set", "algorithm.rounds=2", "--quiet"]) == 0
    assert main(["audit", str(out), "--references", "0", "--quiet"]) == 0


def test_a_simulation_in_python_has_the_same_hashes(tmp_path):
    one, other = ([[-1.0], [1.0]], [0, 1]), ([[-1.0], [1.0]], [1, 0])
    federation = shoal.Federation.from_tensors([one, one, other], test=one)
    model = shoal.create_model("logistic", shoal.VectorShape(inputs=1, classes=2))

    def simulate(**how):
        return simulate_with(federation, model, shoal.FedAvg(), shoal.LocalSGD(), rounds=1, **how)

    result = simulate(out=tmp_path / "run")
    saved = simulate().save(tmp_path / "saved")
    assert shoal.load(tmp_path / "run").description.examples == shoal.load(saved).description.examples != ""
    assert result.description.examples == shoal.load(saved).description.examples
    (tmp_path / "run" / "clients.csv").write_text("changed")
    with pytest.raises(shoal.InputError, match=r"clients\.csv: has changed since"):
        simulate(out=tmp_path / "run", resume=True)


def test_a_sweep_whose_table_has_changed_does_its_runs_anew(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(tomli_w.dumps(BASE | {"data": clinics(tmp_path)}))
    (tmp_path / "sweep.toml").write_text('base = "run.toml"\nseeds = [0]\n[grid]\n"local.epochs" = [1]\n')

    def names():
        return [each.digest for each in plan_runs(read_sweep(tmp_path / "sweep.toml"))]

    before = names()
    assert names() == before
    reordered(tmp_path)
    assert names() != before


def test_limits_that_nobody_set_are_called_drawn(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text(tomli_w.dumps(BASE | {"data": clinics(tmp_path)}))
    for name, changes in (("drawn", []), ("set", ["privacy.thresholds=[0.7, 0.7]", "privacy.beta=0.5"])):
        drawn, out = name == "drawn", tmp_path / name
        options = [part for each in changes for part in ("--set", each)]
        assert main(["run", str(config), "--out", str(out), "--quiet", *options]) == 0
        result = shoal.load(out)
        assert result.clients["threshold_drawn"].tolist() == [int(drawn)] * 3
        assert result.summary.overall["thresholds_drawn"] == 3 * drawn


def test_scores_of_references_that_were_changed_are_not_used(tmp_path, caplog):
    out = run_on(tmp_path, clinics(tmp_path))
    first = shoal.audit_run(out, references=2).flat
    path = out / "references" / "001.safetensors"
    with safe_open(path, framework="pt") as file:
        about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors | {"score": -tensors["score"]}, path, about)
    again = shoal.audit_run(out, references=2).flat
    assert "001.safetensors: is damaged; the federation is trained again" in caplog.text
    assert {key: value for key, value in again.items() if "seconds" not in key} == {
        key: value for key, value in first.items() if "seconds" not in key
    }
