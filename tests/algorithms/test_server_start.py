"""A start on the shadow set: what the server trains before the first round is of no client."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

import shoal
from shoal.engine import Engine
from shoal.replay.reference_federations import AttackedRun
from shoal.simulation.play import initial_state, move_to_engine, run_rounds

OWN = shoal.LocalSGD(epochs=3, batch_size=7, learning_rate=0.3)
PRIVATE = shoal.DPSGD(noise_multiplier=2.0, noise="sum", min_clients=2)
CLUSTERED = shoal.PrivateMeans(noise_multiplier=0.5)


def blobs(count, seed):
    draw, y = torch.Generator().manual_seed(seed), torch.arange(count) % 3
    return torch.randn(count, 6, generator=draw) + 3 * functional.one_hot(y, 6), y


FEDERATION = shoal.Federation.from_tensors(
    [blobs(12, seed=i) for i in range(6)], test=blobs(90, seed=8), shadow=blobs(60, seed=9)
)
MODEL = shoal.create_model("logistic", shoal.VectorShape(6, 3))


def simulation(algorithm, local=OWN, **further):
    return shoal.Simulation(FEDERATION, MODEL, algorithm, local, **{"rounds": 2, **further})


def trained(*settings, **further):
    return shoal.Run(simulation(*settings, **further)).train()


@pytest.mark.parametrize("base", [shoal.FedAvg(), shoal.FedAvg("equal"), CLUSTERED], ids=repr)
def test_where_no_client_takes_part_it_is_the_shadow_set_alone_bit_for_bit(base):
    alone = trained(shoal.ServerOnly(epochs=3)).state.models
    batches = shoal.LocalSGD(steps=1, batch_size="all", learning_rate=5.0)
    # Neither the clients' own training nor their defences are those of the server.
    started = trained(shoal.ServerStart(base, OWN), batches, defenses=(PRIVATE,), participation=0.0).state.models
    assert all(model.equal(alone[0]) for model in started)
    moved = trained(shoal.ServerStart(base, OWN), batches).state.models
    assert not moved.equal(started), "clients change nothing, so the law shows nothing"


def test_left_out_its_training_is_20_epochs_in_the_batches_of_local_training():
    steps = shoal.LocalSGD(steps=2, batch_size=7, learning_rate=0.3, decay=0.5)
    started = trained(shoal.ServerStart(shoal.FedAvg()), steps, participation=0.0)
    assert started.state.models.equal(trained(shoal.ServerOnly(epochs=20)).state.models)


def test_models_that_the_base_begins_apart_stay_apart():
    run = simulation(shoal.ServerStart(shoal.IFCA(clusters=3), OWN))
    with Engine(MODEL, threads=1) as engine:
        begun, started = (
            initial_state(replace(run, algorithm=algorithm), engine).state.models
            for algorithm in (run.algorithm.base, run.algorithm)
        )
        losses = [engine.losses(models, run.federation.clients).mean(dim=0) for models in (begun, started)]
    assert len(started.unique(dim=0)) == 3
    assert (losses[1] < losses[0]).all()


def test_reference_federations_begin_at_the_same_models_whatever_records_they_have():
    run = simulation(shoal.ServerStart(CLUSTERED, OWN))
    with Engine(MODEL, threads=1) as engine:
        run = move_to_engine(run, engine)
        now = initial_state(run, engine)
        *_, (last, _) = run_rounds(run, engine, now)
        attacked = AttackedRun.from_run(run, last.state, last.rows, engine)
        other = replace(run, federation=attacked.records.swap_records(attacked.exchanged(0)))
        assert not other.federation.clients.x.equal(run.federation.clients.x)
        assert initial_state(other, engine).state.models.equal(now.state.models)


def test_it_costs_no_epsilon_and_hides_none_of_its_base():
    local = shoal.LocalSGD(steps=1, batch_size="all", learning_rate=5.0)
    started, base = (
        trained(algorithm, local, defenses=(PRIVATE,)).summary.overall
        for algorithm in (shoal.ServerStart(CLUSTERED, OWN), CLUSTERED)
    )
    spent = [key for key in base if key.startswith("epsilon")]
    assert base["epsilon.choice"] > 0
    assert {key: started[key] for key in spent} == {key: base[key] for key in spent}
