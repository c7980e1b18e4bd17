"""The parts of an algorithm on several machines, what has none, and what the server writes of a round."""

import math
from dataclasses import replace

import pytest
import torch

from shoal.algorithms import IFCA, IFCAMIR, Ditto, FedEM, FedOpt, FedSoft, HypCluster, Redraw, Scaffold
from shoal.core.errors import InputError
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.engine import Engine, LocalSGD, Training
from shoal.models import Model
from shoal.simulation.round_metrics import round_metrics
from shoal_flower.messages import parts_of
from shoal_flower.server.server_app import round_rows


@pytest.mark.parametrize(
    ("algorithm", "words"),
    [
        (Scaffold(), r"Scaffold does not run on several machines.*use one of .*FedAvg"),
        (FedOpt(FedEM()), "FedEM cannot run on several machines"),
        (HypCluster(start="farthest-first"), 'must be "random"'),
        (FedSoft(selection=3), "'selection' must be removed"),
        (IFCA(redraw=Redraw()), "'redraw' must be removed"),
        (IFCAMIR(IFCA(redraw=Redraw())), "'redraw' must be removed"),
    ],
)
def test_what_needs_more_than_one_reply_a_round_is_refused(algorithm, words):
    with pytest.raises(InputError, match=words):
        parts_of(algorithm)


def test_the_server_keeps_no_personal_models_and_clients_no_server_optimizer():
    assert parts_of(FedOpt(Ditto(IFCA(2)))).server == FedOpt(IFCA(2))
    assert parts_of(Ditto(FedOpt(IFCA(2)))).client == Ditto(IFCA(2))


def test_what_the_server_knows_of_a_model_is_what_the_simulator_writes():
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 4, generator=generator), torch.randint(0, 3, (40,), generator=generator)
    clients = [(x[5 * i : 5 * i + 5], y[5 * i : 5 * i + 5]) for i in range(4)]
    federation = Federation.from_tensors(clients, test=(x[20:], y[20:]))
    with Engine(Model(lambda: torch.nn.Linear(4, 3)), threads=1) as engine:
        training = Training(federation, IFCA(2), LocalSGD(epochs=1, batch_size=5), engine, Stream(2))
        state, report = training.round(training.start())
        intervals = torch.tensor([[0.5, 0.7], [0.45, 0.55]], dtype=torch.float64)
        state = replace(state, risks=intervals.mean(dim=1), risk_intervals=intervals)
        server, later = (round_rows(training, state, report.plan, evaluated=evaluated) for evaluated in (True, False))
        simulator = round_metrics(state, report, federation, engine, evaluated=True)
    shared = ["round", "cluster", "clients", "examples", "risk", "risk_low", "risk_high", "accuracy.all"]
    for ours, theirs in zip(server, simulator, strict=True):
        assert {name: ours[name] for name in shared} == {name: theirs[name] for name in shared}
    assert [row["accuracy"] for row in server] == pytest.approx([row["accuracy.all"] for row in server])
    assert all(math.isnan(row["accuracy"]) and math.isnan(row["accuracy.all"]) for row in later)
