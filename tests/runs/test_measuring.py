"""Measuring the final models: no network is called without examples, and whatever fails loses no trained model."""

import json

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import shoal
from shoal import (
    IFCA,
    FedAvg,
    Federation,
    LocalSGD,
    LossThreshold,
    MeasurementError,
    Model,
    RedTeam,
    ShadowModels,
    simulate,
)
from shoal.core.errors import InputError
from shoal.engine import Engine
from shoal.runs.run import run

LOCAL = LocalSGD(batch_size=4, learning_rate=0.1)


class Demanding(nn.Module):
    """A network, like many with attention, that cannot be called without examples."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.output = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.output(self.hidden(x).view(len(x), -1, 2, 2).flatten(1))


def demanding_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross-entropy that cannot be computed without examples."""
    return shoal.models.cross_entropy(outputs.view(len(labels), -1, 3)[:, 0], labels)


MODEL = Model(Demanding, demanding_loss)


def examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 3
    return torch.randn(count, 4, generator=draw) + y[:, None], y


@pytest.fixture(scope="module")
def federation() -> Federation:
    """Six clients of one kind, so that of several models some are chosen by nobody."""
    return Federation.from_tensors(
        [examples(5, seed) for seed in range(6)],
        test=examples(30, 10),
        shadow=examples(40, 11),
        holdout=[examples(2, 20 + seed) for seed in range(6)],
    )


def test_without_examples_outputs_have_their_shape_and_the_network_is_not_called(federation):
    none = torch.empty(0, dtype=torch.int64)
    for backend in ("loop", "vmap"):
        with Engine(MODEL, backend=backend) as engine:
            row, x = MODEL.init(shoal.Stream(0)), federation.test.x
            assert engine.outputs(row, x[:0]).shape == engine.outputs(row, x, none).shape == (0, 3)
            assert list(engine.outputs_in_parts(row, x, none)) == []
            nobody = federation.clients.take(none)
            assert engine.losses(row[None], nobody).shape == engine.example_losses(row[None], nobody).shape == (0, 1)
            assert list(engine.example_gradients_into(len, row, x[:0], federation.test.y[:0])) == []


TEAMS = {
    "shadow": RedTeam(every=1, attack=LossThreshold(), shadow_models=ShadowModels(number=2)),
    "federated": RedTeam(every=1, estimator="federated", shadow_models=ShadowModels(number=2)),
    "histogram": RedTeam(every=1, estimator="histogram"),
}


@pytest.mark.parametrize("team", list(TEAMS))
def test_a_network_that_needs_examples_is_measured_with_empty_clusters(federation, team):
    result = simulate(federation, MODEL, IFCA(clusters=4), LOCAL, rounds=2, red_team=TEAMS[team])
    assert result.clients["cluster"].nunique() < 4, "a cluster is empty"


def test_a_network_that_needs_examples_is_audited_with_empty_clusters(federation):
    gap = RedTeam(every=0, attack=shoal.Gap())
    result = simulate(federation, MODEL, IFCA(clusters=4), LOCAL, rounds=2, red_team=gap, reference_federations=2)
    assert result.clients["cluster"].nunique() < 4, "a cluster is empty"
    assert len(result.audit(references=2).attacks)


# --- failures ----------------------------------------------------------------------------------------------------


class Fragile:
    """Accuracy that fails, as long as ``failing``, on more examples than the test set has: those of training."""

    failing = True

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        if self.failing and len(labels) == 31:
            raise IndexError("no such example\nthe second line")
        return shoal.models.accuracy(outputs, labels)


@pytest.fixture
def clients() -> Federation:
    return Federation.from_tensors([examples(15, 0), examples(16, 1)], test=examples(9, 2))


def test_models_are_saved_before_they_are_measured_and_resuming_measures_again(clients, tmp_path):
    metric, out = Fragile(), tmp_path / "out"
    model = Model(lambda: nn.Linear(4, 3), metric=metric)
    with pytest.raises(MeasurementError) as failed:
        simulate(clients, model, FedAvg(), LOCAL, rounds=2, out=out)
    assert str(failed.value) == (
        "measuring failed: IndexError: no such example; the trained models are in "
        f"{out}/models.safetensors; resume the run to measure them again"
    )
    assert "the second line" in (out / "run.log").read_text(), "the whole error is in the log"
    saved = load_file(out / "models.safetensors")
    assert not (out / "summary.json").exists()
    metric.failing = False
    result = simulate(clients, model, FedAvg(), LOCAL, rounds=2, out=out, resume=True)
    whole = simulate(clients, model, FedAvg(), LOCAL, rounds=2)
    for name, tensor in whole.models[0].items():
        assert torch.equal(saved[f"0.{name}"], tensor)
        assert torch.equal(failed.value.models[0][name], tensor)
        assert torch.equal(result.models[0][name], tensor)


def test_without_a_directory_the_error_has_the_models(clients):
    model = Model(lambda: nn.Linear(4, 3), metric=Fragile())
    with pytest.raises(MeasurementError, match="the trained models are the attribute 'models' of this error") as failed:
        simulate(clients, model, FedAvg(), LOCAL, rounds=2)
    model.network().load_state_dict(failed.value.models[0])


def test_a_run_of_the_command_line_keeps_its_models_too(toy_config, tmp_path, monkeypatch):
    def failing(*_: object) -> None:
        raise InputError("this attack needs more")

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr("shoal.runs.run_training.measure_final", failing)
        with pytest.raises(MeasurementError, match="measuring failed: this attack needs more; the trained"):
            run(toy_config(), out)
    assert load_file(out / "models.safetensors")
    run(toy_config(), out, resume=True)
    assert json.loads((out / "summary.json").read_text())["rounds"] == 4
