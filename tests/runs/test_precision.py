"""precision = "auto": the run keeps the choice of the machine on which it was begun, also where it is resumed."""

import tomllib

import pytest
import torch

from full_simulation import simulate_with
from shoal import FedAvg, LocalSGD, compare
from shoal.core.errors import InputError
from shoal.engine import machine_speed
from shoal.engine.machine_speed import Bf16Speed
from shoal.runs.run import run

FAST, SLOW = Bf16Speed(2.0, 2.0), Bf16Speed(0.5, 0.5)


@pytest.fixture
def machine(monkeypatch):
    """Moves to a machine with another speed of bf16."""
    return lambda speed: monkeypatch.setattr(machine_speed, "bf16_speed", lambda device: speed)


def precision_of(out):
    return tomllib.loads((out / "config.toml").read_text())["engine"]["precision"]


def test_a_configuration_s_run_resumes_elsewhere_with_its_own_choice(toy_config, tmp_path, machine):
    def stop(_, progress, __):
        if progress.state.round == 2:
            raise KeyboardInterrupt

    auto = toy_config(engine__precision="auto")
    machine(FAST)
    whole = run(auto, tmp_path / "whole")
    assert precision_of(whole) == "bf16"
    with pytest.raises(KeyboardInterrupt):
        run(auto, tmp_path / "moved", watch=stop)
    machine(SLOW)
    run(auto, tmp_path / "moved", resume=True)
    assert precision_of(tmp_path / "moved") == "bf16"
    models = [(out / "models.safetensors").read_bytes() for out in (whole, tmp_path / "moved")]
    assert models[0] == models[1]
    # A new run takes this machine's choice, and a comparison says that they differ in it.
    other = run(auto, tmp_path / "other")
    assert precision_of(other) == "fp32"
    assert compare([whole, other]).settings.loc["engine.precision"].tolist() == ["bf16", "fp32"]


def test_a_precision_that_is_stated_is_not_the_run_s_to_change(toy_config, tmp_path, machine):
    machine(FAST)
    run(toy_config(engine__precision="auto"), tmp_path / "run")
    with pytest.raises(InputError, match=r"engine\.precision = 'bf16', but this one has 'fp32'"):
        run(toy_config(engine__precision="fp32"), tmp_path / "run", resume=True)


def test_a_simulation_in_python_keeps_its_choice_too(mlp, build, tmp_path, machine):
    def trained(rounds, out, **more):
        local = LocalSGD(batch_size=6)
        return simulate_with(build(), mlp, FedAvg(), local, rounds=rounds, precision="auto", out=out, **more)

    machine(FAST)
    expected = trained(3, None).state.models
    trained(2, tmp_path / "run")
    machine(SLOW)
    assert torch.equal(trained(3, tmp_path / "run", resume=True).state.models, expected)
    assert not torch.equal(trained(3, None).state.models, expected)
    assert precision_of(tmp_path / "run") == "bf16"


def test_bf16_is_warned_of_where_it_is_slower(mlp, build, machine):
    machine(SLOW)
    slow, other = (simulate_with(build(), mlp, FedAvg(), LocalSGD(), rounds=1, precision=p) for p in ("bf16", "auto"))
    assert any("'bf16' is slower than 'fp32' here" in line for line in slow.warnings)
    assert not any("slower" in line for line in other.warnings)
