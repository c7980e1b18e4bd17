"""What notebooks show of a public value: one line under 200 characters."""

import inspect

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import shoal
from shoal.config.schema import parse_config
from shoal.core.formats import one_line
from shoal.data import GroupedExamples
from shoal.engine import Aggregate, Cohort, DeployedModels, LocalTraining, RoundPlan, RoundReport, State
from shoal.metrics.summary import Summary
from shoal.reports.run.description import RunDescription
from shoal.simulation.play import SimulationState

LONG = [f"group number {i}\nof many" for i in range(100)]
PLAIN = [name.replace("\n", " ") for name in LONG]
BIG = torch.zeros(1000, 40)
MANY = torch.zeros(1000, dtype=torch.int64)
STATE = State(3, BIG, torch.zeros(1000).double(), MANY, server=dict.fromkeys(LONG, BIG))
LOCAL = shoal.LocalSGD(
    epochs=7, batch_size=123, learning_rate=0.123, decay=0.987, weight_decay=0.0123, clip_norm=1.23,
    optimizer=shoal.TorchOptimizer("AdamW", {"betas": [0.9, 0.999], "eps": 1e-7, "amsgrad": True, "maximize": False}),
)  # fmt: skip
FEDERATION = shoal.Federation.from_tensors(
    [(torch.zeros(2, 40), [0, 1])] * 100,
    groups=PLAIN,
    test=shoal.Examples(torch.zeros(100, 40), [0] * 100, PLAIN),
)
MODEL = shoal.Model(lambda: nn.Linear(40, 2))
ENGINE = shoal.Engine(MODEL, threads=1, backend="loop")
ENGINE.close()
DATA = {"source": "digits", "clients": 10, "examples_per_client": 12, "test_examples": 400}
CONFIG = {
    "data": DATA | {"groups": {name: {"share": 0.01} for name in PLAIN}},
    "model": {"name": "mlp", "hidden": 16},
    "algorithm": {"name": "ifca-mir", "rounds": 4},
}
SUMMARY = Summary(
    run={"algorithm": "ifca", "dataset": "x" * 300, "seed": 0},
    overall={"accuracy.overall": 0.5},
    by_group={name: {"mia": 0.5} for name in LONG},
    by_cluster={0: {"mia": 0.5}},
)
FRAME = pd.DataFrame({"run": LONG})
DESCRIBED = RunDescription("ifca", "x", 0, {}, "gap", "shadow", "text\n" * 100)
OWN = [
    shoal.ClientArrays(BIG, MANY, [1] * 1000),
    shoal.Comparison(FRAME, FRAME, tuple(LONG), {}),
    ENGINE,
    shoal.Examples(BIG, MANY, LONG * 10),
    FEDERATION,
    shoal.MeasurementError({0: {"w": BIG}}, "measuring failed"),
    shoal.Result(SUMMARY, FRAME, FRAME, FRAME, {0: {"w": BIG}}, DESCRIBED, {}, STATE),
    shoal.Shape(3, 224, 224, 1000),
    shoal.Stream(0, ("round", 3, "client", 17, "batches")),
    shoal.TextShape(10_000, 1000),
    shoal.VectorShape(10_000, 1000),
    SUMMARY,
]
"""Values of the classes that do not take `one_line`, with as much in them as they can hold."""
OTHERS = [
    LOCAL,
    MODEL,
    STATE,
    RoundPlan(MANY, (LocalTraining(BIG, MANY, BIG),) * 50, BIG),
    SimulationState(STATE, (dict.fromkeys(LONG, 0.5),) * 100),
    parse_config(CONFIG, "test"),
    shoal.Audit(FRAME, FRAME, 16, 1000, 1000, 1.2345, 1e-5, dict.fromkeys(LONG, "too few")),
    shoal.Columns("client", "label", "group", tuple(LONG)),
    shoal.FedOpt(shoal.FedProx(shoal.IFCAMIR(shoal.IFCA(clusters=9))), "yogi", 0.123, 0.8, 0.9, 0.1),
    shoal.LimitController({"augmentation": shoal.Knob(shoal.Augmentation())}, target=0.123),
    shoal.Population(np.zeros(1000), np.zeros((1000, 16)), np.zeros(1000, dtype=int)),
    shoal.Run(shoal.Simulation(FEDERATION, MODEL, shoal.FedAvg(), LOCAL, 12), "runs/mine", notes=["x" * 300]),
    shoal.Training(FEDERATION, shoal.FedAvg(), LOCAL, ENGINE, shoal.Stream(0), risk_estimator=shoal.RedTeam()),
]


@pytest.mark.parametrize("value", [*OWN, *OTHERS], ids=lambda value: type(value).__name__)
def test_a_value_is_shown_on_one_line(value):
    shown = repr(value)
    assert shown.startswith(f"{type(value).__name__}(")
    assert shown.endswith(")")
    assert len(shown) < 200
    assert not any(part in shown for part in ("\n", "0x", "tensor("))


def test_every_public_class_is_shown_by_one_function_or_above():
    public = [value for name in shoal.__all__ if inspect.isclass(value := getattr(shoal, name))]
    held = [Aggregate, Cohort, DeployedModels, GroupedExamples, LocalTraining, RoundPlan, RoundReport, State, Summary]
    # A protocol, which has no values, and exceptions.
    without = {shoal.Defense, shoal.InputError, shoal.ShoalError}
    others = {cls for cls in [*public, *held] if cls.__repr__ is not one_line}
    assert others - without == {type(value) for value in OWN}


def test_settings_show_what_differs_from_the_defaults():
    assert repr(shoal.LocalSGD(steps=3, learning_rate=0.5)) == "LocalSGD(steps=3, learning_rate=0.5)"


def test_tensors_are_shown_by_their_shapes():
    assert "models=Tensor (1000, 40)" in repr(STATE)
    assert repr(FEDERATION.clients) == (
        "Shards(x=Tensor (200, 40), y=Tensor (200,), indices=Tensor (200,), offsets=Tensor (101,))"
    )
