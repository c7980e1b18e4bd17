"""The law that no attack is better than differential privacy allows, against the joint attack, which comes close.

Gradients are longer than the clipping norm and records almost orthogonal, so each record moves an update by all that
the guarantee allows.
"""

import math

import pytest
import torch

import shoal
from shoal.audit.record_table import measure
from shoal.defenses import DPSGD
from shoal.defenses.dp_sgd import NoiseShare
from shoal.engine import Engine
from shoal.replay.attack_inputs import records_of_run
from shoal.replay.reference_federations import AttackedRun
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import Simulation

WHOLE = shoal.LocalSGD(steps=1, batch_size="all", learning_rate=0.5)
BATCHES = shoal.LocalSGD(epochs=2, batch_size=4, learning_rate=0.1)


def in_sum(noise, least=8):
    return DPSGD(1.0, noise, noise="sum", min_clients=least)


def attacked(rule, local=WHOLE, algorithm=None):
    """Each attack on a run's updates and models with its view and figures, and the limits that the run states."""
    draw = torch.Generator().manual_seed(0)
    clients = [(torch.randn(12, 80, generator=draw), torch.arange(12) % 2) for _ in range(8)]
    test = torch.randn(192, 80, generator=draw), torch.arange(192) % 2
    federation, model = (
        shoal.Federation.from_tensors(clients, test=test),
        shoal.create_model("logistic", shoal.VectorShape(80, 2)),
    )
    team = shoal.RedTeam(every=0, attack=shoal.Gap())
    simulation = Simulation(
        federation, model, algorithm or shoal.FedAvg(), local, rounds=5, defenses=[rule], red_team=team
    )
    stated = shoal.Run(simulation).train().summary.overall
    with Engine(model, threads=1) as engine:
        simulation = move_to_engine(simulation, engine)
        now = initial_state(simulation, engine)
        for after, _ in run_rounds(simulation, engine, now):
            now = after
        run = AttackedRun.from_run(simulation, now.state, now.rows, engine)
        records, spans = records_of_run(run, run.scores(engine), [], engine), run.spans(engine)
    scores = {**records.further, **spans.scores}
    return {name: (found.view[0], measure(records.rows_of(name, found))) for name, found in scores.items()}, stated


def exceeded(found, stated):
    """The attacks whose accuracy or AUC is above the limit of their view, by the lower end of its interval."""
    return {
        name
        for name, (view, figures) in found.items()
        if figures.low > stated[f"bound.{view}.accuracy"] or figures.auc_low > stated[f"bound.{view}.auc"]
    }


@pytest.mark.parametrize(
    "run",
    [
        (in_sum(1.0),),
        (in_sum(4.0),),
        (in_sum(16.0),),
        (in_sum(4.0, least=2), WHOLE, shoal.PrivateMeans(2, noise_multiplier=1.0)),
        (DPSGD(1.0, 1.0),),
        (DPSGD(1.0, 3.0), BATCHES),
        (DPSGD(1.0, 2.0, sampling="poisson"), BATCHES),
    ],
    ids=str,
)
def test_no_attack_is_above_the_limit(run):
    found, stated = attacked(*run)
    assert {"joint", "joint-models"} <= {*found}
    assert exceeded(found, stated) == set()


def test_half_of_the_stated_noise_is_seen_by_the_joint_attack_of_the_server(monkeypatch):
    half = property(lambda share: share.rule.noise_multiplier / 2 / math.sqrt(share.rule.min_clients))
    monkeypatch.setattr(NoiseShare, "noise_multiplier", half)
    found, stated = attacked(in_sum(8.0))
    assert "joint" in exceeded(found, stated)
