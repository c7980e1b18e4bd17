"""Laws of clients that leave and join, which hold for every algorithm."""

from dataclasses import replace

import pytest
import torch

import shoal
import shoal.toy
from every_algorithm import ALGORITHMS
from shoal.core.errors import InputError
from shoal.data.presence import Event, Presence
from shoal.engine import Engine, State, Training
from shoal.simulation.simulation import Simulation

FEDERATION, MODEL, LOCAL = shoal.toy.noisy_groups()
TEAM = shoal.RedTeam(every=2, estimator="audit", attack=shoal.Gap())
ROUNDS, LEAVER, NEWCOMER = 4, 5, 0
EVENTS = [Event(round=3, leave=(LEAVER,)), Event(round=3, join=(NEWCOMER,))]


def training(engine, algorithm, events=EVENTS, federation=FEDERATION, **more):
    presence = Presence.from_events(events, federation, ROUNDS) if events else None
    return Training(
        engine.prepare(federation), algorithm, LOCAL, engine, shoal.Stream(1), risk_estimator=TEAM,
        presence=presence, forgetting=shoal.Continue(), **more,
    )  # fmt: skip


def trained(run, upto=ROUNDS, state=None):
    return [*run.rounds(state or run.start(), upto)]


def with_noise(client):
    """The federation whose one client has other inputs."""
    x, clients = FEDERATION.clients.x.clone(), FEDERATION.clients
    x[clients.indices_of(client)] = 9.0
    return replace(FEDERATION, clients=replace(clients, x=x))


@pytest.fixture(scope="module")
def engine():
    with Engine(MODEL, backend="loop") as engine:
        yield engine


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=repr)
def test_an_absent_client_trains_nothing_weighs_nothing_and_changes_nothing(algorithm, engine):
    if any(getattr(part, "membership_barrier", "") for part in shoal.engine.with_bases(algorithm)):
        with pytest.raises(InputError, match="clients cannot leave or join"):
            Simulation(FEDERATION, MODEL, algorithm, LOCAL, ROUNDS, events=EVENTS, red_team=TEAM)
        return
    rounds = trained(training(engine, algorithm))
    for state, report in rounds:
        absent = NEWCOMER if state.round < 3 else LEAVER
        assert absent not in report.cohort.tolist()
    assert [report.departure is not None for _, report in rounds] == [False, False, True, False]
    # A newcomer's data are of no matter before it joins, a leaver's after it left.
    *_, (early, _) = trained(training(engine, algorithm, federation=with_noise(NEWCOMER)), 2)
    *_, (late, _) = trained(training(engine, algorithm, federation=with_noise(LEAVER)), state=rounds[1][0])
    assert early.models.equal(rounds[1][0].models)
    assert late.models.equal(rounds[-1][0].models)


@pytest.mark.parametrize(
    "algorithm", [shoal.IFCA(2), shoal.Ditto(), shoal.FedOpt(shoal.IFCA(2)), shoal.CFL()], ids=repr
)
def test_after_a_departure_the_run_is_that_of_the_others_alone(algorithm, engine):
    leave = [Event(round=3, leave=(LEAVER,))]
    alone, run = training(engine, algorithm, []), training(engine, algorithm, leave)
    before = trained(alone, 2)[-1][0]
    assert trained(run, 2)[-1][0].models.equal(before.models), "nothing happens before the event"
    rest = torch.arange(5)
    *_, (ours, _) = trained(run)
    *_, (theirs, _) = trained(alone.take(rest), state=before.take(rest))
    assert ours.models.equal(theirs.models)
    assert ours.assignment[rest].equal(theirs.assignment)
    assert ours.trained[LEAVER].equal(before.trained[LEAVER]), "what the leaver trained stays known"


def test_a_state_of_some_clients_is_put_back(engine):
    run = training(engine, shoal.Ditto(shoal.IFCA(2)), [])
    state = trained(run, 1)[-1][0]
    some = torch.tensor([4, 1])
    again = state.put(some, state.take(some))
    assert isinstance(again, State)
    assert again.assignment.equal(state.assignment)
    assert again.personal["ditto"].tensor().equal(state.personal["ditto"].tensor())
    assert state.take(some).personal["ditto"].tensor().equal(state.personal["ditto"][some])


def test_the_test_examples_of_a_client_that_is_not_there_count_nowhere():
    test, found = FEDERATION.test, []
    client = torch.arange(len(test)) % len(FEDERATION)
    for absent in (False, True):
        gone = torch.isin(client, torch.tensor([LEAVER, NEWCOMER])) & absent
        federation = replace(FEDERATION, test=replace(test, y=torch.where(gone, 1 - test.y, test.y), client=client))
        events = [Event(round=3, leave=(LEAVER, NEWCOMER))]
        run = Simulation(federation, MODEL, shoal.IFCA(2), LOCAL, ROUNDS, events=events, red_team=TEAM)
        found.append(shoal.Run(run).train())
    (rounds, changed), columns = [result.rounds for result in found], [f"accuracy.{g}" for g in FEDERATION.groups]
    same = rounds[columns].eq(changed[columns]).all(axis=1)
    assert same[rounds["round"] > 2].all()
    assert not same[rounds["round"] <= 2].all(), "they count while the clients are there"
    assert found[0].clients.equals(found[1].clients)
    assert found[0].summary.by_group == found[1].summary.by_group


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_run_with_events_is_resumed_bit_for_bit_and_a_finished_one_gets_them(tmp_path, participation):
    more = {"events": EVENTS, "forgetting": shoal.Exact(), "participation": participation, "seed": 3}
    whole = Simulation(FEDERATION, MODEL, shoal.IFCA(2), LOCAL, ROUNDS, **more)
    expected = shoal.Run(whole).train()
    for stop in (2, 3):

        def interrupt(_, now, report, stop=stop):
            if report is not None and now.state.round == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            shoal.Run(whole, tmp_path / str(stop), watch=interrupt).train()
        resumed = shoal.Run(whole, tmp_path / str(stop), watch=print_nothing).train(resume=True)
        assert resumed.state.models.equal(expected.state.models)
        assert (
            resumed.summary.overall["forgetting.client_rounds"] == expected.summary.overall["forgetting.client_rounds"]
        )
    short = replace(whole, rounds=2, events=(), forgetting=shoal.Continue())
    shoal.Run(short, tmp_path / "short").train()
    leave = replace(whole, events=EVENTS[:1])
    prolonged = shoal.Run(leave, tmp_path / "short").train(resume=True)
    assert prolonged.state.models.equal(shoal.Run(leave).train().state.models)
    with pytest.raises(InputError, match="has a run with"):
        shoal.Run(replace(leave, rounds=5, events=[Event(round=2, leave=(1,))]), tmp_path / "short").train(resume=True)


def print_nothing(*_):
    return None
