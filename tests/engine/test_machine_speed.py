"""The speed of bf16: measured once for a processor and a PyTorch, and the precision that follows from it."""

import json

import pytest
import torch

from shoal.engine import machine_speed
from shoal.engine.machine_speed import Bf16Speed, bf16_speed
from shoal.simulation.engine_settings import EngineSettings


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Devices that were measured; bf16 is three times as fast on them. The cache is a file of the test's own."""
    devices = []
    speed = Bf16Speed(3.0, 1.2)
    monkeypatch.setattr(machine_speed, "measured_bf16_speed", lambda where: devices.append(where) or speed)
    monkeypatch.setattr(machine_speed, "_cache_file", lambda: tmp_path / "cache" / "bf16.json")
    bf16_speed.cache_clear()
    yield devices
    bf16_speed.cache_clear()


def test_it_is_measured_once_for_a_processor_and_a_pytorch(measured, tmp_path, monkeypatch):
    assert bf16_speed("cpu") == bf16_speed("cpu") == Bf16Speed(3.0, 1.2)
    bf16_speed.cache_clear()  # As another process.
    assert bf16_speed("cpu") == Bf16Speed(3.0, 1.2)
    assert measured == [torch.device("cpu")]
    bf16_speed.cache_clear()
    monkeypatch.setattr(machine_speed, "processor_model", lambda: "another")
    bf16_speed("cpu")
    assert len(measured) == 2
    (first, second) = json.loads((tmp_path / "cache" / "bf16.json").read_text())
    assert first.endswith(f", cpu, torch {torch.__version__}")
    assert second == f"another, cpu, torch {torch.__version__}"


@pytest.mark.parametrize("content", ["", "[]", "{", '{"KEY": 3}', '{"KEY": {"product": "fast"}}'])
def test_a_damaged_cache_is_measured_again(measured, tmp_path, monkeypatch, content):
    monkeypatch.setattr(machine_speed, "processor_model", lambda: "this")
    (tmp_path / "cache").mkdir()
    written = content.replace("KEY", f"this, cpu, torch {torch.__version__}")
    (tmp_path / "cache" / "bf16.json").write_text(written)
    assert bf16_speed("cpu") == Bf16Speed(3.0, 1.2)
    assert len(json.loads((tmp_path / "cache" / "bf16.json").read_text())) == 1


def test_a_cache_that_cannot_be_written_does_no_harm(measured, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert bf16_speed("cpu") == bf16_speed("cpu") == Bf16Speed(3.0, 1.2)
    assert len(measured) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_a_device_that_is_not_there_is_not_measured(measured):
    assert EngineSettings(device="cuda:1", precision="auto").chosen_precision() == "fp32"
    assert not measured


def test_the_measurement_is_of_this_machine(monkeypatch):
    monkeypatch.setattr(machine_speed, "_LIMIT", 0.0)
    before, drawn = torch.get_num_threads(), torch.get_rng_state()
    # One turn each by the works themselves; `tests/conftest.py` has replaced the function that calls them.
    speeds = [machine_speed._ratio(work, torch.device("cpu")) for work in
              (machine_speed._product, machine_speed._convolution)]  # fmt: skip
    assert all(speed > 0 for speed in speeds)
    assert torch.get_num_threads() == before
    assert torch.equal(torch.get_rng_state(), drawn)


@pytest.mark.parametrize(
    ("product", "convolution", "chosen", "warned"),
    [
        (2.0, 1.5, "bf16", False),
        (2.0, 1.05, "fp32", False),
        (2.0, 0.5, "fp32", False),
        (0.5, 0.25, "fp32", True),
    ],
)
def test_bf16_is_chosen_where_both_are_faster_and_warned_of_where_neither_is(
    monkeypatch, product, convolution, chosen, warned
):
    monkeypatch.setattr(machine_speed, "bf16_speed", lambda device: Bf16Speed(product, convolution))
    assert EngineSettings(precision="auto").chosen_precision() == chosen
    sentence = EngineSettings(precision="bf16").slow_precision()
    assert (sentence is not None) == warned
    assert sentence is None or "matrix products take 2.0 times as long, convolutions 4.0 times" in sentence
    assert EngineSettings(precision="auto").slow_precision() is None


def test_nothing_is_measured_unless_it_is_asked_for(monkeypatch):
    monkeypatch.setattr(machine_speed, "bf16_speed", lambda device: pytest.fail("measured"))
    assert EngineSettings().chosen_precision() == "fp32"
    assert EngineSettings().slow_precision() is None
    assert EngineSettings(precision="bf16").chosen_precision() == "bf16"
