"""The server's rows of `rounds.csv`: the columns of the simulator's, as far as the server knows them."""

import math
from dataclasses import replace

import pytest
import torch

from shoal.algorithms.clusters.ifca import IFCA
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Engine, LocalSGD, Training
from shoal.models import Model
from shoal.simulation.round_metrics import round_metrics
from shoal_flower.server.round_rows import round_rows


def a_round(*, evaluated: bool):
    """The rows of one round of IFCA by the server, and by the simulator."""
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 4, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    clients = [(x[5 * i : 5 * i + 5], y[5 * i : 5 * i + 5]) for i in range(4)]
    federation = Federation.from_tensors(clients, test=(x[20:], y[20:]))
    with Engine(Model(lambda: torch.nn.Linear(4, 3)), threads=1) as engine:
        training = Training(federation, IFCA(2), LocalSGD(epochs=1, batch_size=5), engine, Stream(2))
        state, report = training.round(training.start())
        intervals = torch.tensor([[0.5, 0.7], [0.45, 0.55]], dtype=torch.float64)
        state = replace(state, risks=intervals.mean(dim=1), risk_intervals=intervals)
        server = round_rows(training, state, report.plan, evaluated=evaluated)
        simulator = round_metrics(state, report, federation, engine, evaluated=evaluated)
    return server, simulator


def test_what_the_server_knows_of_a_model_is_what_the_simulator_writes():
    server, simulator = a_round(evaluated=True)
    shared = ["round", "cluster", "clients", "examples", "risk", "risk_low", "risk_high", "accuracy.all"]
    for ours, theirs in zip(server, simulator, strict=True):
        assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    assert [row["risk_low"] for row in server] == [0.5, 0.45]
    assert [row["accuracy"] for row in server] == pytest.approx([row["accuracy.all"] for row in server])


def test_a_round_that_is_not_evaluated_has_no_accuracies():
    server, _ = a_round(evaluated=False)
    assert all(math.isnan(row["accuracy"]) and math.isnan(row["accuracy.all"]) for row in server)
