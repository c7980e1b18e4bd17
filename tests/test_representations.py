"""What notebooks show of a public value: one line under 200 characters."""

import inspect

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import shoal
from every_algorithm import ALGORITHMS
from shoal.algorithms import ALGORITHMS as NAMED_ALGORITHMS
from shoal.core.layout import Layout
from shoal.data import GroupedExamples
from shoal.engine import Aggregate, Cohort, Deployed, LocalTraining, RoundPlan, RoundReport, State
from shoal.metrics.summary import Summary
from shoal.reports.run.description import RunDescription
from shoal.simulation.play import SimulationState

LONG = [f"group number {i}\nof many" for i in range(100)]
PLAIN = [name.replace("\n", " ") for name in LONG]
BIG = torch.zeros(1000, 40)
MANY = torch.zeros(1000, dtype=torch.int64)
EACH = torch.zeros(1000, dtype=torch.float64)
STATE = State(3, BIG, EACH, MANY, server=dict.fromkeys(LONG, BIG))
PLAN = RoundPlan(MANY, (LocalTraining(BIG, MANY, BIG),) * 50, BIG)
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
CONFIG = {
    "data": {
        "source": "digits", "clients": 10, "examples_per_client": 12, "test_examples": 400,
        "groups": {name: {"share": 0.01} for name in PLAIN},
    },
    "model": {"name": "mlp", "hidden": 16},
    "algorithm": {"name": "ifca-mir", "rounds": 4},
}  # fmt: skip
SUMMARY = Summary(
    run={"algorithm": "ifca", "dataset": "x" * 300, "seed": 0},
    overall={"accuracy.overall": 0.5},
    by_group={name: {"mia": 0.5} for name in LONG},
    by_cluster={0: {"mia": 0.5}},
)
RED_TEAM = shoal.RedTeam(
    every=7, estimator="audit", attack=shoal.ShadowModelAttack("mlp", per_class=False),
    shadow_models=shoal.ShadowModels(number=12, size=345, epochs=67, warm_start=False),
)  # fmt: skip


def config():
    from shoal.config.schema import parse_config  # noqa: PLC0415

    return parse_config(CONFIG, "test")


def result():
    frame = pd.DataFrame({"client": range(1000)})
    described = RunDescription("ifca", "x", 0, {}, "gap", "shadow", "text\n" * 100)
    return shoal.Result(SUMMARY, frame, frame, frame, {0: {"w": BIG}}, described, {}, STATE)


def population():
    zeros = np.zeros(1000)
    return shoal.Population(zeros, np.zeros((1000, 16)), zeros.astype(int))


def scores():
    zeros, references = np.zeros(1000), np.zeros((1000, 16))
    return shoal.ReferenceScores(zeros, zeros > 0, references, references > 0, zeros.astype(int), population())


def audit():
    frame = pd.DataFrame({"attack": LONG})
    return shoal.Audit(frame, frame, 16, 1000, 1000, 1.2345, 1e-5, dict.fromkeys(LONG, "too few"))


def comparison():
    frame = pd.DataFrame({"run": LONG})
    return shoal.Comparison(frame, frame, tuple(LONG), {})


def simulation():
    return shoal.Simulation(FEDERATION, MODEL, shoal.IFCA(clusters=9), LOCAL, 12, seed=3, participation=0.123)


VALUES = {
    "EngineSettings": lambda: shoal.EngineSettings("cuda:1", 12, "bf16", "loop"),
    "Run": lambda: shoal.Run(simulation(), "runs/mine", notes=["x" * 300]),
    "Simulation": simulation,
    "Comparison": comparison,
    "Config": config,
    "MeasurementError": lambda: shoal.MeasurementError({0: {"w": BIG}}, "measuring failed"),
    "Audit": audit,
    "AuditRecords": lambda: shoal.AuditRecords(scores(), *[np.array(LONG, dtype=object)] * 3),
    "Population": population,
    "ReferenceScores": scores,
    "Result": result,
    "Distillation": lambda: shoal.Distillation(steps=1234),
    "Features": lambda: shoal.Features(("pca",), dimension=12),
    "LaplaceNoise": lambda: shoal.LaplaceNoise(noise_multiplier=0.123),
    "Knob": lambda: shoal.Knob(shoal.Augmentation(12.5, 1.5), 0.123, 0.0456),
    "LimitController": lambda: shoal.LimitController({"augmentation": shoal.Knob(shoal.Augmentation())}, target=0.123),
    "LocalSGD": lambda: LOCAL,
    "RedTeam": lambda: RED_TEAM,
    "LossHistograms": lambda: shoal.LossHistograms(epsilon=0.123456789),
    "ClientArrays": lambda: shoal.ClientArrays(BIG, MANY, [1] * 1000),
    "Columns": lambda: shoal.Columns("client", "label", "group", tuple(LONG)),
    "Examples": lambda: shoal.Examples(BIG, MANY, LONG * 10),
    "Federation": lambda: FEDERATION,
    "Group": lambda: shoal.Group("north", 0.5, rotation=(0, 90), brightness=(0.5, 0.8)),
    "ImageDataset": lambda: shoal.ImageDataset("x", torch.zeros(99, 1, 28, 28), 255, MANY, 9, 10),
    "TextDataset": lambda: shoal.TextDataset("x", torch.zeros(99, 28), 255, MANY, 9, 10),
    "TableDataset": lambda: shoal.TableDataset("x", torch.zeros(99, 28), MANY, 9, 10),
    "Partition": lambda: shoal.Partition(clients=9, examples_per_client=99, test_examples=9999),
    "Preferences": lambda: shoal.Preferences(EACH, EACH),
    "PropertyPartition": lambda: shoal.PropertyPartition(
        shoal.Partition(clients=9, examples_per_client=99, test_examples=9999), 0.123, 7, 40
    ),
    "PropertySchedule": lambda: shoal.PropertySchedule(MANY > 0, MANY > 0, 3, 4, 5),
    "Engine": lambda: ENGINE,
    "Training": lambda: shoal.Training(
        FEDERATION, shoal.FedAvg(), LOCAL, ENGINE, shoal.Stream(0), risk_estimator=RED_TEAM
    ),
    "TorchOptimizer": lambda: LOCAL.optimizer,
    "Model": lambda: MODEL,
    "Shape": lambda: shoal.Shape(3, 224, 224, 1000),
    "TextShape": lambda: shoal.TextShape(10_000, 1000),
    "VectorShape": lambda: shoal.VectorShape(10_000, 1000),
    "Stream": lambda: shoal.Stream(0, ("round", 3, "client", 17, "batches")),
    "DPSGD": lambda: shoal.DPSGD(max_grad_norm=1.5, noise_multiplier=2.5, delta=1e-6),
    "L2": lambda: shoal.L2(0.1),
    "Augmentation": lambda: shoal.Augmentation(12.5, 1.5, flip=True, crop=0.25, strength=0.75),
    "Mixup": lambda: shoal.Mixup(0.4, strength=0.75),
    "Flooding": lambda: shoal.Flooding(0.5),
    "RelaxLoss": lambda: shoal.RelaxLoss(0.5, 0.3),
    "CCL": lambda: shoal.CCL("ccql", 0.75, 0.5, strength=0.75),
    "ShorterTraining": lambda: shoal.ShorterTraining(0.5),
    "Dropout": lambda: shoal.Dropout(0.1),
    "NormClipping": lambda: shoal.NormClipping(1.5),
}
"""Values of the public classes, with as much in them as they can hold."""

WITHIN = {
    "State": lambda: STATE,
    "Shards": lambda: FEDERATION.clients,
    "GroupedExamples": lambda: GroupedExamples(BIG, MANY, MANY),
    "Cohort": lambda: Cohort(
        1,
        MANY,
        MANY,
        shoal.Preferences(EACH, EACH),
        LOCAL,
        Layout((), 0),
        lambda *_: EACH,
        shoal.Stream(0),
        lambda _: BIG,
        MANY,
    ),
    "LocalTraining": lambda: PLAN.trainings[0],
    "RoundPlan": lambda: PLAN,
    "Aggregate": lambda: Aggregate(BIG, (BIG,) * 50),
    "Deployed": lambda: Deployed(BIG, MANY, MANY),
    "RoundReport": lambda: RoundReport(MANY, PLAN, True, {"choose": 0.1}),
    "SimulationState": lambda: SimulationState(STATE, (dict.fromkeys(LONG, 0.5),) * 100),
    "Summary": lambda: SUMMARY,
}
"""Values that public ones hold, and that `watch` and one's own algorithms meet."""


def public_classes():
    classes = [name for name in shoal.__all__ if inspect.isclass(getattr(shoal, name))]
    without = ("Defense", "InputError", "ShoalError")  # A protocol, of which there are no values, and exceptions.
    algorithms = [cls.__name__ for cls in NAMED_ALGORITHMS.values()]
    return [name for name in classes if name not in (*without, *algorithms)] + list(WITHIN)


DEEP = shoal.FedOpt(shoal.FedProx(shoal.IFCAMIR(shoal.IFCA(clusters=9))), "yogi", 0.123, 0.8, 0.9, 0.1)
MADE = [{**VALUES, **WITHIN}.get(name) or getattr(shoal, name) for name in public_classes()]


@pytest.mark.parametrize("make", [*MADE, *((lambda value=value: value) for value in (DEEP, *ALGORITHMS))])
def test_a_value_is_shown_on_one_line(make):
    value = make()
    shown = repr(value)
    assert shown.startswith(f"{type(value).__name__}(")
    assert shown.endswith(")")
    assert len(shown) < 200
    assert "\n" not in shown
    assert "0x" not in shown
    assert "tensor(" not in shown


def test_settings_show_what_differs_from_the_defaults():
    assert repr(shoal.LocalSGD(steps=3, learning_rate=0.5)) == "LocalSGD(steps=3, learning_rate=0.5)"
    assert eval(repr(shoal.FedOpt(shoal.IFCA(clusters=3))), vars(shoal)) == shoal.FedOpt(shoal.IFCA(clusters=3))


def test_tensors_are_shown_by_their_shapes():
    assert "models=Tensor (1000, 40)" in repr(STATE)
    assert repr(FEDERATION.clients) == (
        "Shards(x=Tensor (200, 40), y=Tensor (200,), indices=Tensor (200,), offsets=Tensor (101,))"
    )
