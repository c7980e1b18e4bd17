"""Baselines with a model for each client, against plain loops over clients, and in the limits where they are others."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from plain_training import CLOSE, batches, played, sgd
from shoal.algorithms import MRMTL, Ditto, LocalOnly
from shoal.core.randomness import Stream
from shoal.data import Federation
from shoal.defenses import NormClipping
from shoal.engine import Aggregate, Engine, LocalSGD, LocalTraining, State, Training, client_updates
from shoal.models import Model

FULL = LocalSGD(steps=2, batch_size="all", learning_rate=0.1)
BATCHES = LocalSGD(epochs=2, batch_size=4, learning_rate=0.1, momentum=0.5)
ROUNDS = 3


def trained(model, federation, algorithm, local=FULL, **options):
    return played(model, federation, algorithm, local, **options)[0]


def cohorts(model: Model, federation: Federation, **others) -> list[list[int]]:
    """Positions of each round's clients."""
    with Engine(model, threads=1) as engine:
        training = Training(federation, LocalOnly(), FULL, engine, Stream(5), **others)
        return [training.cohort(number).tolist() for number in range(1, ROUNDS + 1)]


def own(state: State) -> Tensor:
    return state.personal["local"].tensor()


@pytest.mark.parametrize(("local", "participation"), [(FULL, 0.5), (BATCHES, 1.0)], ids=["full", "mini-batches"])
def test_local_training_is_each_client_s_own_sgd(model, build, local, participation):
    federation = build()
    states = trained(model, federation, LocalOnly(), local, participation=participation)
    expected = [states[0].models[0]] * len(federation)
    for number, cohort in enumerate(cohorts(model, federation, participation=participation), start=1):
        for i in cohort:
            expected[i] = sgd(model, expected[i], batches(federation, i, local, number), local)
    torch.testing.assert_close(own(states[-1]), torch.stack(expected), **CLOSE)


class SecondTraining(LocalOnly):
    """Local training only as the second training of a round, with Ditto's draws; nobody takes part in the first."""

    def plan(self, state, cohort):
        plan = super().plan(state, cohort)
        nobody = LocalTraining(state.models, plan.assignment, participates=torch.zeros(len(cohort), dtype=torch.bool))
        return replace(plan, trainings=(nobody, *plan.trainings))

    def server_update(self, state, cohort, plan, aggregate):
        return super().server_update(state, cohort, plan, Aggregate(aggregate.models, aggregate.kept[1:]))


@pytest.mark.parametrize("local", [FULL, BATCHES], ids=["full", "mini-batches"])
def test_ditto_without_a_pull_is_local_training_bit_for_bit(model, build, local):
    alone = own(trained(model, build(), SecondTraining(), local)[-1])
    ditto, pulled = (trained(model, build(), Ditto(strength=each), local)[-1] for each in (0.0, 0.1))
    assert torch.equal(ditto.personal["ditto"].tensor(), alone)
    assert not torch.equal(pulled.personal["ditto"].tensor(), alone)
    if local is FULL:
        # Full batches are drawn by nobody, so it is local training itself.
        assert torch.equal(alone, own(trained(model, build(), LocalOnly(), local)[-1]))


def test_local_training_sends_nothing_so_the_servers_filter_has_no_effect(mlp, build):
    federation = build()
    with Engine(mlp, threads=1) as engine:
        training = Training(federation, LocalOnly(), FULL, engine, Stream(5), record_every=1)
        state, report = training.round(training.start())
        assert report.updates is not None
        assert len(report.updates) == 0
        assert not list(client_updates(training, training.start(), report, int(federation.ids[0])))
        assert int(state.trained.max()) == 0, "a client counts as one that trained the server's model"
        deployed, _ = training.deployed_models(state)
    assert torch.equal(deployed.models.tensor(), own(state))
    assert deployed.model.tolist() == list(range(6))
    limited = trained(mlp, federation, LocalOnly(), rounds=1, update_filter=NormClipping(1e-3))[-1]
    assert torch.equal(own(limited), own(state))


@pytest.mark.parametrize(("local", "participation"), [(FULL, 0.5), (BATCHES, 1.0)], ids=["full", "mini-batches"])
def test_mr_mtl_is_each_client_s_sgd_with_a_pull_to_the_mean_of_all(model, build, local, participation):
    federation = build()
    states = trained(model, federation, MRMTL(0.7), local, participation=participation)
    expected = [states[0].models[0]] * len(federation)
    for number, cohort in enumerate(cohorts(model, federation, participation=participation), start=1):
        mean = torch.stack(expected).mean(dim=0)
        for i in cohort:
            pull = lambda w, m=mean: 0.35 * (w - m).square().sum()  # noqa: E731
            expected[i] = sgd(model, expected[i], batches(federation, i, local, number), local, pull=pull)
    torch.testing.assert_close(own(states[-1]), torch.stack(expected), **CLOSE)
    torch.testing.assert_close(states[-1].models[0], torch.stack(expected).mean(dim=0), **CLOSE)


@pytest.mark.parametrize(
    "others", [{"participation": 0.5}, {"update_filter": NormClipping(0.05)}], ids=["some clients", "bounded updates"]
)
def test_the_server_s_model_of_mr_mtl_stays_the_mean_of_all_clients_models(mlp, build, others):
    for state in trained(mlp, build(), MRMTL(0.7), **others):
        torch.testing.assert_close(state.models[0], own(state).mean(dim=0), **CLOSE)


def test_clients_of_mr_mtl_send_their_models_which_move_the_mean_by_their_share(mlp, build):
    federation = build()
    with Engine(mlp, threads=1) as engine:
        options = {"participation": 0.5, "record_every": 2}
        training = Training(federation, MRMTL(0.7), FULL, engine, Stream(5), **options)
        first, _ = training.round(training.start())
        after, report = training.round(first)
        again = [
            each for i in report.cohort for each in client_updates(training, first, report, int(federation.ids[i]))
        ]
        deployed, _ = training.deployed_models(after)
    assert report.updates is not None
    sent = report.updates.models[report.updates.assignment] + report.updates.updates
    torch.testing.assert_close(sent, own(after)[report.cohort], **CLOSE)
    assert len(again) == len(report.cohort) == 3
    moved = torch.stack([weight * update for _, weight, update in again]).sum(dim=0)
    torch.testing.assert_close(first.models[0] + moved, after.models[0], **CLOSE)
    assert torch.equal(deployed.models.tensor(), own(after))
