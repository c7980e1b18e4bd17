"""Exact forgetting is the run that never had the client."""

from dataclasses import replace

import pytest
import torch

import shoal
import shoal.toy
from shoal.core.errors import InputError
from shoal.data.presence import Event
from shoal.defenses import LaplaceNoise
from shoal.simulation.play import initial_state, move_to_engine, run_rounds
from shoal.simulation.simulation import Simulation

FEDERATION, MODEL, LOCAL = shoal.toy.noisy_groups()
LEAVE, NEVER = (Event(round=4, leave=(5,)),), (Event(round=1, leave=(5,)),)
FULL = replace(LOCAL, batch_size="all")
CLIP = {"defenses": [shoal.NormClipping(1.0)]}


def trained(algorithm, events=LEAVE, forgetting=shoal.Exact(), rounds=5, federation=FEDERATION, **more):  # noqa: B008
    local, seed = more.pop("local", LOCAL), more.pop("seed", 3)
    simulation = Simulation(
        federation, MODEL, algorithm, local, rounds, events=events, forgetting=forgetting, seed=seed, **more
    )
    with shoal.Engine(MODEL, backend="loop") as engine:
        simulation = move_to_engine(simulation, engine)
        return [now for now, _ in run_rounds(simulation, engine, initial_state(simulation, engine))]


def never(algorithm, events=NEVER, **more):
    return trained(algorithm, events, shoal.Continue(), **more)


@pytest.mark.parametrize("more", [{}, {"participation": 0.5}, CLIP], ids=["all", "half", "clipped"])
@pytest.mark.parametrize("algorithm", [shoal.FedAvg(), shoal.FedProx(mu=0.5), shoal.ByGroup(), shoal.IFCA(2)])
def test_nothing_of_the_leaver_is_left_where_no_choice_depends_on_it(algorithm, more):
    if more.get("participation"):
        # Cohorts of a federation without the client are others: the rounds before the event are compared alone.
        (left,) = trained(algorithm, **more)[-1].departures
        assert (left.client_rounds <= left.full_client_rounds, left.clusters) == (True, 1)
        return
    now = trained(algorithm, **more)[-1]
    (left,) = now.departures
    assert left.changed_choices == 0
    assert now.state.models.equal(never(algorithm, **more)[-1].state.models)


@pytest.mark.parametrize(("clusters", "seed"), [(2, 1), (2, 10), (3, 8)])
def test_nothing_of_the_leaver_is_left_where_choices_depend_on_it(clusters, seed):
    now = trained(shoal.IFCA(clusters), seed=seed)[-1]
    (left,) = now.departures
    assert left.changed_choices > 0
    after = never(shoal.IFCA(clusters), seed=seed)[-1].state
    assert now.state.models.equal(after.models)
    assert now.state.assignment[:5].equal(after.assignment[:5])


def test_other_clusters_stay_bit_for_bit_and_the_cost_is_that_of_the_leaver_s():
    now = trained(shoal.IFCA(2), rounds=4)[-1]
    (left,) = now.departures
    changed = (left.before != left.after).any(dim=1)
    assert changed.sum() == left.clusters == 1
    # These clients train the leaver's model; 5 clients in 3 rounds are a full retraining.
    assert [cohort.tolist() for cohort in left.cohorts] == [[2, 3, 4], [2, 3, 4], [3, 4]]
    assert (left.client_rounds, left.full_client_rounds, left.choices) == (8, 15, 15)
    assert now.state.trained[5, changed].tolist() == [0], "the new model never saw the leaver"


def test_two_leavers_at_once_are_one_after_the_other():
    both, one = Event(round=4, leave=(5, 1)), Event(round=4, leave=(1,))
    together, apart = trained(shoal.IFCA(2), [both])[-1], trained(shoal.IFCA(2), [*LEAVE, one])[-1]
    assert together.state.models.equal(apart.state.models)
    later = trained(shoal.IFCA(2), [*LEAVE, Event(round=5, leave=(2,))])[-1]
    gone = never(shoal.IFCA(2), [*NEVER, Event(round=1, leave=(2,))])[-1]
    assert [left.round for left in later.departures] == [4, 5]
    assert later.state.models.equal(gone.state.models)


@pytest.mark.parametrize("algorithm", [shoal.FedOpt(shoal.IFCA(2)), shoal.Ditto(), shoal.FedEM(2)], ids=repr)
def test_algorithms_whose_models_depend_on_each_other_are_retrained_whole(algorithm):
    now = trained(algorithm, local=FULL)[-1]
    (left,) = now.departures
    assert (left.client_rounds, left.choices) == (left.full_client_rounds, 0)
    assert now.state.models.allclose(never(algorithm, local=FULL)[-1].state.models, atol=1e-6)


def test_a_cluster_whose_first_training_by_the_leaver_came_late_begins_there():
    events = (Event(round=3, join=(5,)), Event(round=5, leave=(5,)))
    now = trained(shoal.IFCA(2), events)[-1]
    (left,) = now.departures
    assert left.client_rounds == 2 * 2
    assert now.state.models.equal(never(shoal.IFCA(2))[-1].state.models)


@pytest.mark.parametrize("algorithm", [shoal.FedAvg(), shoal.FedOpt()])
@pytest.mark.parametrize(
    "defense", [LaplaceNoise(noise_multiplier=50.0), shoal.DPSGD(noise_multiplier=50.0, max_grad_norm=1.0)]
)
def test_noise_is_drawn_anew(algorithm, defense):
    # The leaver has no part in these updates: one noise on both models would leave their difference without any.
    now = trained(algorithm, (Event(round=2, leave=(5,)),), rounds=2, defenses=[defense])[-1]
    (left,) = now.departures
    first = trained(algorithm, (), shoal.Continue(), rounds=1, defenses=[defense])[-1].state
    assert torch.equal(first.models, left.before)
    sizes = FEDERATION.clients.sizes.double()
    share = float((sizes[:5] / sizes[:5].sum() - sizes[:5] / sizes.sum()).norm())
    whole = float((sizes / sizes.sum()).norm())
    spread = float((left.after - left.before).std()) / float((left.before - MODEL_START(algorithm)).std())
    assert spread > 2 * share / whole


def MODEL_START(algorithm):  # noqa: N802
    with shoal.Engine(MODEL, backend="loop") as engine:
        return shoal.Training(FEDERATION, algorithm, LOCAL, engine, shoal.Stream(3)).start().models


def test_a_method_without_leavers_and_an_unknown_one_are_refused():
    with pytest.raises(InputError, match="forgetting: 'exact' needs clients that leave"):
        trained(shoal.FedAvg(), ())
    with pytest.raises(InputError, match="'forgetting' must be a Forgetting"):
        trained(shoal.FedAvg(), forgetting="exact")
    for events in (3, ["leave"]):
        with pytest.raises(InputError, match="'events' must be"):
            trained(shoal.FedAvg(), events)
