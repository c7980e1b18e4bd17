"""A profile's figures: parts that add up, operations that are those of the layers, and hints that follow from them."""

import math

import pytest
import torch
from torch import nn

from shoal import IFCA, FedAvg, Gap, LocalSGD, Model, NormClipping, RedTeam, Simulation
from shoal.core.errors import InputError
from shoal.engine import Engine, machine_speed
from shoal.engine.backends.selection import backend_reason
from shoal.engine.machine_speed import Bf16Speed
from shoal.engine.step_products import StepProducts
from shoal.engine.steps import TorchOptimizer
from shoal.simulation import profile as module
from shoal.simulation.engine_settings import EngineSettings
from shoal.simulation.profile import Profile, profile

ONE = EngineSettings(threads=1)
NO_RED_TEAM = RedTeam(every=0, attack=Gap())
AVERAGING, CLUSTERS, LOCAL = FedAvg(), IFCA(2), LocalSGD(batch_size=6)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """No second is spent on rates, which no test knows."""
    monkeypatch.setattr(StepProducts, "rate", lambda *_: 5e9)
    monkeypatch.setattr(machine_speed, "product_rate", lambda *_, **__: 7.0)


def profiled(build, model, algorithm=AVERAGING, local=LOCAL, settings=ONE, rounds=2, **more):
    simulation = Simulation(build(), model, algorithm, local, 20, **{"red_team": NO_RED_TEAM, **more})
    return profile(simulation, settings, rounds=rounds)


def test_the_parts_of_a_round_add_up_and_none_is_counted_twice(build, mlp):
    found = profiled(build, mlp, IFCA(2), defenses=[NormClipping(1.0)])
    flat = found.flat()
    parts = {key.partition(".")[2]: value for key, value in flat.items() if key.startswith("seconds.")}
    assert parts.pop("total") == pytest.approx(sum(parts.values())) == found.total
    assert set(parts) == {"choose", "local_training", "defenses", "aggregation", "red_team", "evaluation"}
    assert all(parts[part] > 0 for part in set(parts) - {"red_team"})
    assert parts["red_team"] == pytest.approx(0, abs=1e-3)
    shares = [value for key, value in flat.items() if key.startswith("share.")]
    assert sum(shares) == pytest.approx(1)
    assert flat["factor"] == pytest.approx(5.0 / flat["local_training.gflop_per_second"])


@pytest.mark.parametrize(
    ("local", "trained"),
    [
        (LocalSGD(epochs=2, batch_size=6), 2 * 55),
        (LocalSGD(steps=3, batch_size=4), 9 + 12 + (7 + 4) + 12 + (5 + 4) + 10),
        (LocalSGD(epochs=1, batch_size="all"), 55),
    ],
    ids=["epochs", "steps", "full"],
)
def test_operations_are_those_of_the_layers(build, mlp, local, trained):
    """Of an example: 2 for each weight forward, for its gradient, and, but for the first layer, for its input's."""
    of_example = 2 * (36 * 8 + 8 * 3) * 2 + 2 * 8 * 3
    assert profiled(build, mlp, local=local).gflop * 1e9 == pytest.approx(of_example * trained)


def test_operations_of_convolutions_and_of_frozen_layers(build, cnn):
    forward = {"convolution": 2 * 36 * 4 * 9, "output": 2 * 36 * 3}
    x, y = torch.zeros(5, 1, 6, 6), torch.zeros(5, dtype=torch.int64)
    whole = StepProducts.of_step(cnn, x, y, torch.float32)
    assert whole.operations == 5 * (2 * forward["convolution"] + 3 * forward["output"])

    def head_only():
        network = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3))
        network[0].requires_grad_(False)
        return network

    head = StepProducts.of_step(Model(head_only), x, y, torch.float32)
    assert head.operations == 5 * (forward["convolution"] + 2 * forward["output"])


def test_what_is_not_done_in_every_round_counts_by_its_share_of_the_rounds(build, mlp, monkeypatch):
    began = []
    estimate = RedTeam.estimate
    monkeypatch.setattr(RedTeam, "estimate", lambda *given: began.append(given[1].round) or estimate(*given))
    team = RedTeam(every=9, estimator="audit", attack=Gap())
    found = profiled(build, mlp, red_team=team, evaluate_every=4)
    assert began == [9], "once, though three rounds are trained"
    assert found.seconds["red_team"] > 0
    assert profiled(build, mlp, red_team=RedTeam(every=1, estimator="audit", attack=Gap())).seconds["red_team"] > 0


def test_no_more_rounds_than_the_run_has_and_at_least_one(build, mlp):
    simulation = Simulation(build(), mlp, FedAvg(), LocalSGD(), 2)
    assert profile(simulation, ONE, rounds=9).rounds == 1
    assert profile(Simulation(build(), mlp, FedAvg(), LocalSGD(), 1), ONE).rounds == 1
    with pytest.raises(InputError, match="'rounds' must be at least 1; got 0"):
        profile(simulation, ONE, rounds=0)


def test_it_writes_nothing(build, mlp, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    profiled(build, mlp, settings=EngineSettings(threads=1))
    assert not list(tmp_path.iterdir())


def test_a_network_without_counted_layers_says_so(build):
    class Bias(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(3))

        def forward(self, images):
            return images.flatten(1)[:, :3] + self.bias

    found = profiled(build, Model(Bias))
    assert (found.gflop, found.factor) == (0.0, None)
    assert "no operations that PyTorch counts" in str(found)


def test_the_rate_is_of_all_threads_and_clients(mlp, monkeypatch):
    monkeypatch.undo()
    x, y = torch.zeros(5, 1, 6, 6), torch.zeros(5, dtype=torch.int64)
    step = StepProducts.of_step(mlp, x, y, torch.float32)
    asked = []

    def timed(work, threads, turns=7):
        asked.append(threads)
        work()
        return 0.25

    monkeypatch.setattr("shoal.engine.step_products.side_by_side", timed)
    assert step.rate(threads=3, clients=4) == 3 * 4 * step.operations / 0.25
    assert asked == [1, 3]


def hints(build, model, monkeypatch, settings=ONE, algorithm=CLUSTERS, **shares):
    parts = dict.fromkeys(("choose", "local_training", "defenses", "aggregation", "red_team", "evaluation"), 0.0)
    monkeypatch.setattr(module, "cores", lambda: 1)
    team = RedTeam(every=3, attack=Gap(), estimator="audit")
    simulation = Simulation(build(), model, algorithm, LOCAL, 20, red_team=team)
    with Engine(model, threads=settings.threads) as engine:
        return module._hints(simulation, settings, settings, parts | shares, engine)


def test_hints_are_of_the_largest_parts_and_of_options_that_there_are(build, mlp, monkeypatch):
    assert hints(build, mlp, monkeypatch, choose=1.0, evaluation=0.1) == (
        'Hint, 90.9 % of a round: algorithm.choose_by = "batch" scores the models on one batch a client.',
    )
    # FedAvg does not choose.
    assert hints(build, mlp, monkeypatch, algorithm=AVERAGING, choose=1.0) == ()
    largest = hints(build, mlp, monkeypatch, red_team=2.0, evaluation=1.0, choose=0.9)
    assert [hint.partition(": ")[2] for hint in largest] == [
        "red_team.every = 6 halves what the red team takes.",
        "evaluation.every = 2 halves what evaluation takes.",
    ]


def test_a_hint_on_bf16_follows_from_the_measurement(build, mlp, monkeypatch):
    for speed, of_fp32, of_bf16 in (
        (Bf16Speed(2.0, 1.5), "products are 2.0 times as fast in bf16, convolutions 1.5 times", ""),
        (Bf16Speed(0.5, 0.5), "", "'bf16' is slower than 'fp32' here"),
        (Bf16Speed(2.0, 0.5), "", ""),
    ):
        monkeypatch.setattr(machine_speed, "bf16_speed", lambda device, speed=speed: speed)
        for precision, expected in (("fp32", of_fp32), ("bf16", of_bf16)):
            settings = EngineSettings(threads=1, precision=precision)
            found = hints(build, mlp, monkeypatch, settings, local_training=1.0)
            assert len(found) == bool(expected)
            assert expected in "".join(found)


def test_a_hint_on_a_backend_that_was_asked_for(build, mlp, cnn, monkeypatch):
    monkeypatch.setattr(machine_speed, "bf16_speed", lambda device: Bf16Speed(1.0, 1.0))
    asked = EngineSettings(threads=1, backend="loop")
    assert "engine.backend" in "".join(hints(build, mlp, monkeypatch, asked, local_training=1.0))
    assert hints(build, cnn, monkeypatch, asked, local_training=1.0) == ()


def test_a_hint_on_cores_that_do_not_train(build, mlp, monkeypatch):
    found = hints(build, mlp, monkeypatch, local_training=1.0)
    monkeypatch.setattr(module, "cores", lambda: 8)
    simulation = Simulation(build(), mlp, FedAvg(), LocalSGD(), 20)
    with Engine(mlp, threads=1) as engine:
        more = module._hints(simulation, ONE, ONE, dict.fromkeys(module.TRAIN, 1.0) | dict.fromkeys(
            ("choose", "red_team", "evaluation"), 0.0), engine)  # fmt: skip
    assert not any("engine.threads" in hint for hint in found)
    assert "engine.threads: 1 of 8 cores train." in "".join(more)


def test_the_table_says_what_a_person_needs():
    seconds = {"choose": 0.1, "local_training": 0.3, "red_team": 0.0}
    found = Profile(2, seconds, 3.0, 20.0, 40.0, "loop", "Why.", "On cpu.", ())
    lines = str(found).splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["part", "ms", "a", "round", "share"],
        ["local", "training", "300.0", "75.0", "%"],
        ["choosing", "100.0", "25.0", "%"],
        ["all", "of", "a", "round", "400.0"],
    ]
    assert math.isclose(found.reached, 10.0)
    assert "at 10.0 GFLOP/s" in lines[-1]
    assert "up to 2.0 times as fast" in lines[-1]


@pytest.mark.parametrize(
    ("network", "backend", "local", "said"),
    [
        ("mlp", "vmap", LocalSGD(), "many clients at a time, for at most 500,000"),
        ("cnn", "vmap", LocalSGD(), "many clients at a time, as it was asked for"),
        ("cnn", "loop", LocalSGD(), "since vmap is faster only for networks of at most"),
        ("mlp", "loop", LocalSGD(), "as it was asked for, or since vmap cannot train this network"),
        ("mlp", "vmap", LocalSGD(optimizer=TorchOptimizer("Adam")), "since vmap trains by SGD alone"),
    ],
)
def test_why_a_backend_trains(request, network, backend, local, said):
    assert said in backend_reason(backend, request.getfixturevalue(network), local)
